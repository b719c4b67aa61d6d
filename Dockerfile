# For a CPU. No image has been built from this file yet; a test checks that it copies all that the package needs.
#   docker build --tag electra-sampler .
#   docker run --rm --volume "$PWD:/work" electra-sampler build-shards
FROM python:3.12-slim

# Open MPI for `mpirun electra-sampler build-shards`; pdsh and ssh for `deepspeed --hostfile`.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openmpi-bin openssh-client pdsh \
    && rm -rf /var/lib/apt/lists/*

# A container's user is root, which mpirun refuses otherwise.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /source
COPY setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY electra_sampler electra_sampler
COPY data_prep data_prep
COPY pretrain pretrain
COPY finetune finetune
COPY samplers samplers
COPY ds_configs ds_configs
COPY hostfiles hostfiles
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt '.[language,packed,remote]'

WORKDIR /work
ENTRYPOINT ["electra-sampler"]
CMD ["--help"]
