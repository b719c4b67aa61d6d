"""The console command `electra-sampler` of an installed project."""
