"""ELECTRA with T5's relative position bias, as Hugging Face models: plain PyTorch, in one file.

Load it from a model folder that carries this file:

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

Parameter names are Hugging Face's ELECTRA's, plus one table of relative positions,
`encoder.relative_attention_bias.weight`. With that table at zero the models compute what ELECTRA's do.

Shape letters: B batch, C choices, L length, E embedding size, H hidden size, N heads, D head size, F feed-forward
size, V vocabulary, K labels, T starts or ends of a beam, X any last dimension.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.electra.modeling_electra import ElectraForPreTrainingOutput


class ElectraSamplerConfig(PretrainedConfig):
    """Sizes and dropout; names and defaults are `ElectraConfig`'s, plus T5's two for relative positions."""

    model_type = "electra_sampler"

    def __init__(
        self,
        vocab_size: int = 30_522,
        embedding_size: int = 128,
        hidden_size: int = 256,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 4,
        intermediate_size: int = 1024,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        classifier_dropout: float | None = None,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        pad_token_id: int | None = 0,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.classifier_dropout = classifier_dropout
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.relative_attention_num_buckets = relative_attention_num_buckets
        self.relative_attention_max_distance = relative_attention_max_distance
        super().__init__(**kwargs)
        self.pad_token_id = pad_token_id
        self.tie_word_embeddings = tie_word_embeddings


class Embeddings(nn.Module):
    """Word + segment + position embedding, LayerNorm, dropout: [B, L, E]."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words_BLE: Tensor, token_type_ids_BL: Tensor, position_ids_BL: Tensor) -> Tensor:
        embedded_BLE = words_BLE + self.token_type_embeddings(token_type_ids_BL)
        return self.dropout(self.LayerNorm(embedded_BLE + self.position_embeddings(position_ids_BL)))


class RelativePositionBias(nn.Embedding):
    """T5's bias on attention scores (Raffel et al. 2020, section 2.1): one value per bucket of distances and head.

    Half of the buckets are for keys to the right. In each direction the near half of the buckets are single distances,
    the others grow logarithmically up to the largest distance.
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
        """Bias of every query and key, [B, N, L, L]."""
        distance_BLL = position_ids_BL[:, None, :] - position_ids_BL[:, :, None]  # key position minus query position
        magnitude_BLL, bucket_BLL = distance_BLL.abs(), self.per_direction * (distance_BLL > 0).long()
        for start in self.bucket_starts:
            bucket_BLL = bucket_BLL + (magnitude_BLL >= start).long()
        return super().forward(bucket_BLL).permute(0, 3, 1, 2)


class Heads(nn.Module):
    """Self-attention: softmax(Q K^T / sqrt(D) + bias) V, heads concatenated.

    (transformers would not let `attn_implementation` change later in a module that it takes for its own by the name.)
    """

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_BLH: Tensor, bias: Tensor, eager: bool) -> tuple[Tensor, Tensor | None]:
        """States [B, L, H] and, if `eager`, attention weights [B, N, L, L]."""
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


class ResidualOutput(nn.Module):
    """LayerNorm(residual + dropout(dense(x))): the end of both halves of a layer."""

    def __init__(self, in_features: int, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x_BLX: Tensor, residual_BLH: Tensor) -> Tensor:
        return self.LayerNorm(residual_BLH + self.dropout(self.dense(x_BLX)))


class Layer(GradientCheckpointingLayer):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm (post-norm, as BERT)."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": Heads(config), "output": ResidualOutput(config.hidden_size, config)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden_BLH: Tensor, bias: Tensor, eager: bool) -> tuple[Tensor, Tensor | None]:
        context_BLH, weights_BNLL = self.attention["self"](hidden_BLH, bias, eager)
        attended_BLH = self.attention["output"](context_BLH, hidden_BLH)
        expanded_BLF = F.gelu(self.intermediate["dense"](attended_BLH))
        return self.output(expanded_BLF, attended_BLH), weights_BNLL


class Encoder(nn.Module):
    """The layers and the table of relative positions that they share."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.relative_attention_bias = RelativePositionBias(config)


class ElectraSamplerPreTrainedModel(PreTrainedModel):
    """Loading, saving, initialization, and the form of outputs."""

    output: type[ModelOutput]
    """Output of a model with a head."""

    config_class = ElectraSamplerConfig
    base_model_prefix = "electra"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Embeddings", "Layer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initializes what a checkpoint lacks, such as a new head, as google-research/electra does; the table as T5."""
        deviation = self.config.initializer_range
        if isinstance(module, RelativePositionBias):
            nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.embeddings.word_embeddings = value

    def as_asked(self, output: ModelOutput, return_dict: bool | None) -> ModelOutput | tuple:
        """The output by name, or the tuple of the fields that it has."""
        by_name = self.config.return_dict if return_dict is None else return_dict
        return output if by_name else output.to_tuple()

    def answer(
        self, encoded: BaseModelOutput, return_dict: bool | None, **fields: Tensor | None
    ) -> ModelOutput | tuple:
        """The head's fields, with the encoder's states and attentions where they were asked for."""
        states = {"hidden_states": encoded.hidden_states, "attentions": encoded.attentions}
        return self.as_asked(self.output(**fields, **states), return_dict)


class ElectraSamplerModel(ElectraSamplerPreTrainedModel):
    """The encoder, `AutoModel`."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        if config.embedding_size != config.hidden_size:
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple:
        """Ids [B, L], or word embeddings [B, L, E], to `last_hidden_state` [B, L, H].

        `attention_mask` is 1 where a position is visible: [B, L], or [B, L, L] per query; floats of [B, 1, L, L] are
        added to the scores. `position_ids` decide absolute and relative positions.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected one of input_ids and inputs_embeds")
        words_BLE = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        length, longest = words_BLE.shape[1], self.config.max_position_embeddings
        if position_ids is None:
            if not torch.jit.is_tracing() and length > longest:  # type: ignore[attr-defined]
                raise ValueError(
                    f"got a sequence of {length} tokens, expected at most {longest} (max_position_embeddings);"
                    " tokenize with truncation=True, or split the text"
                )
            position_ids = torch.arange(length, device=words_BLE.device)[None]
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(words_BLE[..., 0], dtype=torch.long)
        hidden_BLX = self.embeddings(words_BLE, token_type_ids, position_ids)
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
        output = BaseModelOutput(
            last_hidden_state=hidden_BLX,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
        )
        return self.as_asked(output, return_dict)

    @staticmethod
    def _masked(bias_BNLL: Tensor, mask: Tensor | None) -> Tensor:
        """The bias with the lowest number where the mask hides a key."""
        if mask is None:
            return bias_BNLL
        if mask.dim() == 4 and mask.is_floating_point():
            return bias_BNLL + mask.to(bias_BNLL.dtype)
        if mask.dim() < 4:
            mask = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
        return bias_BNLL.masked_fill(~mask.bool(), torch.finfo(bias_BNLL.dtype).min)


class ElectraSamplerWithHead(ElectraSamplerPreTrainedModel):
    """Encoder and task head: logits, and their loss if there are labels."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.electra = ElectraSamplerModel(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ModelOutput | tuple:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.electra(*inputs, output_attentions, output_hidden_states, return_dict=True)
        logits = self.scores(encoded.last_hidden_state)
        loss = None if labels is None else self.loss(logits, labels, attention_mask)
        return self.answer(encoded, return_dict, loss=loss, logits=logits)


class DiscriminatorHead(nn.Module):
    """dense(GELU(dense(h))): [B, L, H] -> [B, L]."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        return self.dense_prediction(F.gelu(self.dense(hidden_BLH))).squeeze(-1)


class ElectraSamplerForPreTraining(ElectraSamplerWithHead):
    """The discriminator, `AutoModelForPreTraining`: logits [B, L], above 0 where a token looks replaced.

    `labels` are 1 there; positions that a mask of [B, L] hides do not count.
    """

    output = ElectraForPreTrainingOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.discriminator_predictions = DiscriminatorHead(config)
        self.post_init()

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.discriminator_predictions(hidden_BLH)

    def loss(self, logits_BL: Tensor, labels_BL: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.dim() == 2:
            logits_BL, labels_BL = logits_BL[mask.bool()], labels_BL[mask.bool()]
        return F.binary_cross_entropy_with_logits(logits_BL, labels_BL.to(logits_BL.dtype))


class VocabularyTransform(nn.Module):
    """LayerNorm(GELU(dense(h))): [B, L, H] -> [B, L, E]."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(hidden_BLH)))


class ElectraSamplerForMaskedLM(ElectraSamplerWithHead):
    """The generator or a masked language model, `AutoModelForMaskedLM`: logits [B, L, V].

    The output matrix is the word embeddings. `labels` are ids, -100 where none is asked for.
    """

    output = MaskedLMOutput
    _tied_weights_keys = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.generator_predictions = VocabularyTransform(config)
        self.generator_lm_head = nn.Linear(config.embedding_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.generator_lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.generator_lm_head = value

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.generator_lm_head(self.generator_predictions(hidden_BLH))

    def loss(self, logits_BLV: Tensor, labels_BL: Tensor, mask: Tensor | None) -> Tensor:
        return F.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten())


class ClassificationHead(nn.Module):
    """dense(GELU(dense(h))) of the first token, with dropout: [B, L, H] -> [B, K]."""

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = classifier_dropout(config)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        transformed_BH = F.gelu(self.dense(self.dropout(hidden_BLH[:, 0])))
        return self.out_proj(self.dropout(transformed_BH))


class ElectraSamplerForSequenceClassification(ElectraSamplerWithHead):
    """`AutoModelForSequenceClassification`: logits [B, K].

    The loss is `config.problem_type`'s; where that is not set, mean squared error of one label, cross-entropy of
    `labels` that are whole numbers, and binary cross-entropy of others.
    """

    output = SequenceClassifierOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.classifier = ClassificationHead(config)
        self.post_init()

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.classifier(hidden_BLH)

    def loss(self, logits_BK: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        problem = self.config.problem_type
        if problem is None:
            single = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            problem = "regression" if self.num_labels == 1 else single
        if problem == "single_label_classification":
            return F.cross_entropy(logits_BK, labels.flatten())
        if problem == "regression":
            return F.mse_loss(logits_BK, labels.view_as(logits_BK).to(logits_BK.dtype))
        return F.binary_cross_entropy_with_logits(logits_BK, labels.to(logits_BK.dtype))


class ElectraSamplerForTokenClassification(ElectraSamplerWithHead):
    """`AutoModelForTokenClassification`: logits [B, L, K]; `labels` are -100 where none is asked for."""

    output = TokenClassifierOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def scores(self, hidden_BLH: Tensor) -> Tensor:
        return self.classifier(self.dropout(hidden_BLH))

    def loss(self, logits_BLK: Tensor, labels_BL: Tensor, mask: Tensor | None) -> Tensor:
        return F.cross_entropy(logits_BLK.flatten(0, 1), labels_BL.flatten())


class ElectraSamplerForMultipleChoice(ElectraSamplerWithHead):
    """`AutoModelForMultipleChoice`: inputs [B, C, L] to logits [B, C]; `labels` [B] are the right choices."""

    output = MultipleChoiceModelOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.sequence_summary = nn.ModuleDict({"summary": nn.Linear(config.hidden_size, config.hidden_size)})
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MultipleChoiceModelOutput | tuple:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        flat = (None if tensor is None else tensor.flatten(0, 1) for tensor in inputs)
        encoded = self.electra(*flat, output_attentions, output_hidden_states, return_dict=True)
        choices = next(tensor.shape[1] for tensor in (input_ids, inputs_embeds) if tensor is not None)
        summary = F.gelu(self.sequence_summary["summary"](encoded.last_hidden_state[:, 0]))
        logits_BC = self.classifier(self.dropout(summary)).view(-1, choices)
        loss = None if labels is None else F.cross_entropy(logits_BC, labels)
        return self.answer(encoded, return_dict, loss=loss, logits=logits_BC)


class ElectraSamplerForQuestionAnswering(ElectraSamplerPreTrainedModel):
    """`AutoModelForQuestionAnswering`: logits [B, L] of an answer's first and last token.

    The loss is the mean of both cross-entropies; a position beyond the sequence does not count.
    """

    output = QuestionAnsweringModelOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.electra = ElectraSamplerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QuestionAnsweringModelOutput | tuple:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.electra(*inputs, output_attentions, output_hidden_states, return_dict=True)
        start_BL, end_BL = self.qa_outputs(encoded.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = start_BL.shape[1]
            losses = [
                F.cross_entropy(logits_BL, positions.flatten().clamp(0, length), ignore_index=length)
                for logits_BL, positions in ((start_BL, start_positions), (end_BL, end_positions))
            ]
            loss = torch.stack(losses).mean()
        logits = {"start_logits": start_BL.contiguous(), "end_logits": end_BL.contiguous()}
        return self.answer(encoded, return_dict, loss=loss, **logits)


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

    output = JointQuestionAnsweringOutput

    def __init__(self, config: ElectraSamplerConfig) -> None:
        super().__init__(config)
        self.electra = ElectraSamplerModel(config)
        self.span_head = JointSpanHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> JointQuestionAnsweringOutput | tuple:
        if token_type_ids is None:
            raise ValueError("got no token_type_ids, expected 0 in the question and 1 in the paragraph")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.electra(*inputs, output_attentions, output_hidden_states, return_dict=True)
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
        return self.answer(
            encoded,
            return_dict,
            start_top_log_probs=start_log_p_BT,
            start_top_index=start_BT,
            end_top_log_probs=end_log_p_BTT.flatten(1),
            end_top_index=end_BTT.flatten(1),
            cls_logits=self.span_head.unanswerable(hidden_BLH[:, 0], likely_BH).float(),
        )


def classifier_dropout(config: ElectraSamplerConfig) -> nn.Dropout:
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)
