"""ELECTRA with T5's relative position bias, as Hugging Face models, in one file: the encoder in plain PyTorch, with
Hugging Face's own heads.

Load it from a model folder that carries this file:

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

Parameter names are Hugging Face's ELECTRA's, plus one table of relative positions,
`encoder.relative_attention_bias.weight`. With that table at zero the models compute what ELECTRA's do.

Shape letters: B batch, L length, E embedding size, H hidden size, N heads, D head size, F feed-forward size,
T starts or ends of a beam, X any last dimension.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraPreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, ModelOutput
from transformers.models.electra.modeling_electra import (
    ElectraEmbeddings,
    ElectraIntermediate,
    ElectraOutput,
    ElectraSelfOutput,
)
from transformers.utils import can_return_tuple


class ElectraSamplerConfig(ElectraConfig):
    """The settings of `ElectraConfig`, plus T5's two settings of relative positions."""

    model_type = "electra_sampler"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128


class RelativePositionBias(nn.Embedding):
    """T5's bias on attention scores (Raffel et al. 2020, section 2.1): one value per bucket of distances and head.

    Half of the buckets are for keys to the right. In each direction, the nearer half hold one distance each; the others
    grow logarithmically up to the largest distance.
    """

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config.relative_attention_num_buckets, config.num_attention_heads)
        self.per_direction = config.relative_attention_num_buckets // 2
        exact, reach = self.per_direction // 2, config.relative_attention_max_distance
        growth = math.log(reach / exact)

        def bucket(distance: int) -> int:
            return (
                distance
                if distance < exact
                else exact + int(math.log(distance / exact) / growth * (self.per_direction - exact))
            )

        # whole numbers: a logarithm rounded otherwise on another device would move a distance to the next bucket
        self.bucket_starts = [
            next(distance for distance in range(reach + 1) if bucket(distance) >= number)
            for number in range(1, self.per_direction)
        ]

    def forward(self, position_ids_BL: Tensor) -> Tensor:
        """Returns the bias of every query and key, [B, N, L, L]."""
        distance_BLL = position_ids_BL[:, None, :] - position_ids_BL[:, :, None]  # key position minus query position
        magnitude_BLL, bucket_BLL = distance_BLL.abs(), self.per_direction * (distance_BLL > 0).long()
        for start in self.bucket_starts:
            bucket_BLL = bucket_BLL + (magnitude_BLL >= start).long()
        return super().forward(bucket_BLL).permute(0, 3, 1, 2)


class Heads(nn.Module):
    """Self-attention: softmax(Q K^T / sqrt(D) + bias) V, heads concatenated.

    (If its name ended in "Attention", transformers would refuse later changes of `attn_implementation`.)
    """

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_BLH: Tensor, bias: Tensor, eager: bool) -> tuple[Tensor, Tensor | None]:
        """Returns states [B, L, H] and, if `eager`, attention weights [B, N, L, L]."""
        query_BNLD, key_BNLD, value_BNLD = (
            projection(hidden_BLH).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        weights_BNLL = None
        if eager:
            scores_BNLL = query_BNLD @ key_BNLD.transpose(2, 3) * query_BNLD.shape[-1] ** -0.5
            weights_BNLL = F.dropout((scores_BNLL + bias).softmax(-1), dropout)
            context_BNLD = weights_BNLL @ value_BNLD
        else:
            context_BNLD = F.scaled_dot_product_attention(
                query_BNLD, key_BNLD, value_BNLD, attn_mask=bias, dropout_p=dropout
            )
        # a copy even of what is contiguous: an exported program may get its states from a kernel with other strides
        context_BLND = context_BNLD.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return context_BLND.flatten(2), weights_BNLL


class Layer(GradientCheckpointingLayer):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm (post-norm, as BERT)."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": Heads(config), "output": ElectraSelfOutput(config)})
        self.intermediate = ElectraIntermediate(config)
        self.output = ElectraOutput(config)

    def forward(self, hidden_BLH: Tensor, bias: Tensor, eager: bool) -> tuple[Tensor, Tensor | None]:
        context_BLH, weights_BNLL = self.attention["self"](hidden_BLH, bias, eager)
        attended_BLH = self.attention["output"](context_BLH, hidden_BLH)
        return self.output(self.intermediate(attended_BLH), attended_BLH), weights_BNLL


class Encoder(nn.Module):
    """The layers and the table of relative positions that they share."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.relative_attention_bias = RelativePositionBias(config)


class ElectraSamplerPreTrainedModel(ElectraPreTrainedModel):
    """Base class of the models: loading, saving and initialization."""

    config_class = ElectraSamplerConfig
    accepts_loss_kwargs = False  # the losses of ELECTRA's heads are means, which `Trainer` divides when it accumulates
    _supports_flash_attn = False  # no other attention takes a learned bias
    _supports_flex_attn = False
    _supports_attention_backend = False
    _no_split_modules = ["ElectraEmbeddings", "Layer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initializes what a checkpoint lacks, such as a new head, as Hugging Face's ELECTRA does; the table as T5."""
        super()._init_weights(module)
        if isinstance(module, RelativePositionBias):
            nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.embeddings.word_embeddings = value


class ElectraSamplerModel(ElectraSamplerPreTrainedModel):
    """The encoder, loaded by `AutoModel`."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.embeddings = ElectraEmbeddings(config)
        if config.embedding_size != config.hidden_size:
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Maps ids [B, L], or word embeddings [B, L, E], to `last_hidden_state` [B, L, H].

        `attention_mask` is 1 where a position is visible: [B, L], or [B, L, L] per query; floats of [B, 1, L, L] are
        added to the scores. `position_ids` decide absolute and relative positions.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected one of input_ids and inputs_embeds")
        given: Tensor = input_ids if inputs_embeds is None else inputs_embeds  # type: ignore[assignment]
        length, longest = given.shape[1], self.config.max_position_embeddings
        if position_ids is None:
            if not torch.jit.is_tracing() and length > longest:  # type: ignore[attr-defined]
                raise ValueError(
                    f"got a sequence of {length} tokens, expected at most {longest} (max_position_embeddings);"
                    " tokenize with truncation=True, or split the text"
                )
            position_ids = torch.arange(length, device=given.device)[None]
        hidden_BLX = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        if self.config.embedding_size != self.config.hidden_size:
            hidden_BLX = self.embeddings_project(hidden_BLX)

        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        eager = output_attentions or self.config._attn_implementation == "eager"
        bias = self._masked(self.encoder.relative_attention_bias(position_ids).to(hidden_BLX.dtype), attention_mask)
        states, weights = [hidden_BLX], []
        for layer in self.encoder.layer:
            hidden_BLX, weights_BNLL = layer(hidden_BLX, bias, eager)
            if output_hidden_states:
                states.append(hidden_BLX)
            weights.append(weights_BNLL)
        return BaseModelOutput(
            last_hidden_state=hidden_BLX,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
        )

    @staticmethod
    def _masked(bias_BNLL: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the bias with the lowest number where the mask hides a key."""
        if mask is None:
            return bias_BNLL
        if mask.dim() == 4 and mask.is_floating_point():
            return bias_BNLL + mask.to(bias_BNLL.dtype)
        if mask.dim() < 4:
            mask = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
        return bias_BNLL.masked_fill(~mask.bool(), torch.finfo(bias_BNLL.dtype).min)


class ElectraSamplerWithHead(ElectraSamplerPreTrainedModel):
    """Base class of models with a task head of Hugging Face's ELECTRA, the second base class, on this encoder."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.electra = ElectraSamplerModel(config)
        self.post_init()


class ElectraSamplerForPreTraining(ElectraSamplerWithHead, ElectraForPreTraining):
    """The discriminator, `AutoModelForPreTraining`: logits [B, L], above 0 where a token looks replaced."""


class ElectraSamplerForMaskedLM(ElectraSamplerWithHead, ElectraForMaskedLM):
    """The generator or a masked language model, `AutoModelForMaskedLM`; the output matrix is the word embeddings."""


class ElectraSamplerForSequenceClassification(ElectraSamplerWithHead, ElectraForSequenceClassification):
    """`AutoModelForSequenceClassification`."""


class ElectraSamplerForTokenClassification(ElectraSamplerWithHead, ElectraForTokenClassification):
    """`AutoModelForTokenClassification`."""


class ElectraSamplerForQuestionAnswering(ElectraSamplerWithHead, ElectraForQuestionAnswering):
    """`AutoModelForQuestionAnswering`."""


class ElectraSamplerForMultipleChoice(ElectraSamplerWithHead, ElectraForMultipleChoice):
    """`AutoModelForMultipleChoice`."""


class PairScorer(nn.Module):
    """One logit per pair of states: dense layer over both, activation, optional LayerNorm, dense layer."""

    def __init__(
        self, config: ElectraSamplerConfig, size: int, activation: str, layer_norm: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.first = nn.Linear(config.hidden_size, size, bias=False)
        self.second = nn.Linear(config.hidden_size, size)
        self.activation = {"gelu": nn.GELU, "tanh": nn.Tanh}[activation]()
        self.LayerNorm = nn.LayerNorm(size, eps=1e-12) if layer_norm else nn.Identity()
        self.logit = nn.Linear(size, 1, bias=bias)

    def forward(self, first_H: Tensor, second_H: Tensor) -> Tensor:
        """Maps states [..., H], whose leading dimensions broadcast, to logits [...]."""
        return self.logit(self.LayerNorm(self.activation(self.first(first_H) + self.second(second_H)))).squeeze(-1)


class JointSpanHead(nn.Module):
    """The layers that score a start, an end given a start, and "no answer"; their sizes are in `config.span_head`."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        kind = config.span_head
        size, activation = kind["hidden_size"] or config.hidden_size, kind["activation"]
        self.start = nn.Linear(config.hidden_size, 1)
        self.end = PairScorer(config, size, activation, layer_norm=kind["end_layer_norm"])
        self.unanswerable = PairScorer(config, size, activation, bias=kind["answerable_bias"])


@dataclass
class JointQuestionAnsweringOutput(ModelOutput):
    """The T likeliest starts, and the T likeliest ends of each; fields as in XLNet's output.

    The ends of start t are [:, t * T : (t + 1) * T]. `cls_logits` are positive if "no answer" is the likelier.
    """

    start_top_log_probs: Tensor | None = None
    start_top_index: Tensor | None = None
    end_top_log_probs: Tensor | None = None
    end_top_index: Tensor | None = None
    cls_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ElectraSamplerForJointQuestionAnswering(ElectraSamplerPreTrainedModel):
    """`AutoModelForQuestionAnswering` with the head of google-research/electra or XLNet, for prediction.

    `token_type_ids` are 1 in the paragraph: an answer lies there, or is [CLS].
    """

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.electra = ElectraSamplerModel(config)
        self.span_head = JointSpanHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> JointQuestionAnsweringOutput:
        if token_type_ids is None:
            raise ValueError("got no token_type_ids, expected 0 in the question and 1 in the paragraph")
        encoded = self.electra(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            return_dict=True,
        )
        hidden_BLH, allowed_BL = encoded.last_hidden_state, token_type_ids.bool()
        if not self.config.span_head["last_separator"]:
            seen_BL = torch.ones_like(token_type_ids) if attention_mask is None else attention_mask
            allowed_BL = allowed_BL.scatter(1, seen_BL.long().sum(1, keepdim=True) - 1, False)
        allowed_BL = allowed_BL.index_fill(1, torch.zeros(1, dtype=torch.long, device=allowed_BL.device), True)

        start_BL = self.span_head.start(hidden_BLH).squeeze(-1).float().masked_fill(~allowed_BL, -math.inf)
        likely_BH = torch.einsum("bl,blh->bh", start_BL.softmax(1).to(hidden_BLH.dtype), hidden_BLH)
        beam = min(self.config.span_head["beam"], hidden_BLH.shape[1])
        start_log_p_BT, start_BT = start_BL.log_softmax(1).topk(beam)
        state_BTH = torch.take_along_dim(hidden_BLH, start_BT[:, :, None], dim=1)
        end_BTL = self.span_head.end(state_BTH[:, :, None], hidden_BLH[:, None]).float()
        end_log_p_BTT, end_BTT = end_BTL.masked_fill(~allowed_BL[:, None], -math.inf).log_softmax(2).topk(beam)
        return JointQuestionAnsweringOutput(
            start_top_log_probs=start_log_p_BT,
            start_top_index=start_BT,
            end_top_log_probs=end_log_p_BTT.flatten(1),
            end_top_index=end_BTT.flatten(1),
            cls_logits=self.span_head.unanswerable(hidden_BLH[:, 0], likely_BH).float(),
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
