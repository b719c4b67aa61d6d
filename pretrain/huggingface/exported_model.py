"""An export with relative position as Hugging Face models, for `AutoModel.from_pretrained(FOLDER,
trust_remote_code=True)` where the project is not installed: the last part of the one file that the folder carries.

Parameter names are those of Hugging Face's ELECTRA, plus the table of relative positions.
Shape letters: B batch, L length, H hidden size, V vocabulary.
"""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, ModelOutput
from transformers.models.electra.modeling_electra import ElectraForPreTrainingOutput

from pretrain.model.encoder import ElectraEncoder, EncoderConfig, initialize_matrix
from pretrain.model.heads import DiscriminatorHead, VocabularyScores, VocabularyTransform

DEFAULTS = EncoderConfig(  # Hugging Face's `ElectraConfig`
    vocab_size=30_522,
    embedding_size=128,
    hidden_size=256,
    num_hidden_layers=12,
    num_attention_heads=4,
    intermediate_size=1024,
)


class ElectraSamplerConfig(PretrainedConfig):
    """The fields of `EncoderConfig` as a Hugging Face configuration."""

    model_type = "electra_sampler"

    def __init__(self, **values: Any) -> None:
        for name, default in dataclasses.asdict(DEFAULTS).items():
            setattr(self, name, values.pop(name, default))
        super().__init__(**values)

    def encoder(self) -> EncoderConfig:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(EncoderConfig)}
        return EncoderConfig(**values | {"relative_bias_init": "t5"})  # the table is loaded, not computed


class ElectraSamplerPreTrainedModel(PreTrainedModel):
    """What the models share."""

    config_class = ElectraSamplerConfig
    base_model_prefix = "electra"
    _input_embed_layer = "word_embeddings"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        """For what a checkpoint lacks, such as a new head."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            initialize_matrix(module, self.config.initializer_range)


class ElectraSamplerModel(ElectraSamplerPreTrainedModel):
    """The encoder, `AutoModel`."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        for name, part in ElectraEncoder(config.encoder()).named_children():
            self.add_module(name, part)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **unused: Any,
    ) -> BaseModelOutput:
        """Ids [B, L] -> `last_hidden_state` [B, L, H]; without a mask every position is visible."""
        visible_BL = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        segments_BL = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return BaseModelOutput(last_hidden_state=ElectraEncoder.forward(self, input_ids, visible_BL, segments_BL))


class ElectraSamplerWithHeads(ElectraSamplerPreTrainedModel):
    """The encoder, heads that give each position scores, and their loss where there are labels."""

    heads: dict[str, type[nn.Module]]
    output: type[ModelOutput]

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.electra = ElectraSamplerModel(config)
        for name, head in self.heads.items():
            self.add_module(name, head(config.encoder()))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **unused: Any,
    ) -> ModelOutput:
        visible_BL = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self.scores(self.electra(input_ids, visible_BL, token_type_ids).last_hidden_state)
        loss = None if labels is None else self.loss(logits, labels, visible_BL.bool())
        return self.output(loss=loss, logits=logits)


class ElectraSamplerForPreTraining(ElectraSamplerWithHeads):
    """The discriminator, `AutoModelForPreTraining`: logits [B, L], above 0 where a token looks replaced.

    `labels` are 1 there, and padding does not count.
    """

    heads = {"discriminator_predictions": DiscriminatorHead}
    output = ElectraForPreTrainingOutput

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.discriminator_predictions(hidden_BLH)

    def loss(self, d_BL: Tensor, labels_BL: Tensor, visible_BL: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(d_BL[visible_BL], labels_BL[visible_BL].to(d_BL.dtype))


class ElectraSamplerForMaskedLM(ElectraSamplerWithHeads):
    """The generator or a masked language model, `AutoModelForMaskedLM`: logits [B, L, V].

    `labels` are ids, -100 where none is asked for, which PyTorch leaves out.
    """

    heads = {"generator_predictions": VocabularyTransform, "generator_lm_head": VocabularyScores}
    output = MaskedLMOutput

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.generator_lm_head(self.generator_predictions(hidden_BLH), self.electra.embeddings.word_embeddings)

    def loss(self, logits_BLV: Tensor, labels_BL: Tensor, visible_BL: Tensor) -> Tensor:
        return F.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten())
