"""ModernBERT with the heads of fine-tuned ELECTRAs, as Hugging Face models. Load one from a folder that carries this
file:

    AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)
"""

from typing import Any

from torch import Tensor, nn
from transformers import (
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ModernBertConfig,
    ModernBertModel,
    ModernBertPreTrainedModel,
)
from transformers.models.electra.modeling_electra import ElectraClassificationHead

from .modeling_electra_sampler import ElectraSamplerForJointQuestionAnswering, JointSpanHead


class ModernSamplerConfig(ModernBertConfig):
    """The settings of `ModernBertConfig`."""

    model_type = "modern_sampler"


class ModernSamplerWithHead(ModernBertPreTrainedModel):
    """Base class of the models: the encoder, called as the forward passes of ELECTRA's classes call theirs."""

    config_class = ModernSamplerConfig
    accepts_loss_kwargs = False  # as in ElectraSamplerPreTrainedModel

    def __init__(self, config: ModernSamplerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = ModernBertModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)

    def electra(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encodes ids or word embeddings; segments, which the encoder lacks, are ignored."""
        shown = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        kwargs |= {name: value for name, value in shown.items() if value is not None}
        return self.model(input_ids, attention_mask, position_ids, inputs_embeds, **kwargs)


class ModernSamplerForSequenceClassification(ModernSamplerWithHead):
    """`AutoModelForSequenceClassification`."""

    def __init__(self, config: ModernSamplerConfig) -> None:
        super().__init__(config)
        self.classifier = ElectraClassificationHead(config)
        self.post_init()

    forward = ElectraForSequenceClassification.forward


class ModernSamplerForTokenClassification(ModernSamplerWithHead):
    """`AutoModelForTokenClassification`."""

    def __init__(self, config: ModernSamplerConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    forward = ElectraForTokenClassification.forward


class ModernSamplerForJointQuestionAnswering(ModernSamplerWithHead):
    """`AutoModelForQuestionAnswering`, for prediction."""

    def __init__(self, config: ModernSamplerConfig) -> None:
        super().__init__(config)
        self.span_head = JointSpanHead(config)
        self.post_init()

    forward = ElectraSamplerForJointQuestionAnswering.forward
