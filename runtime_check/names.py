"""Plausible values from the names that people give to parameters.

The sizes form one small consistent family: heads divide widths, groups divide channels, patches divide
images, and widths are all equal, so that residual connections and stacked layers fit together.
"""
from __future__ import annotations

import re
from typing import Any

WIDTH, HEADS, DEPTH, LENGTH, IMAGE, VOCABULARY, CLASSES, BATCH = 32, 4, 2, 16, 64, 40, 5, 2

#: First match wins. The pattern is searched in the name in snake case.
TABLE: list[tuple[str, Any]] = [
    (r"kernel|ksize|filter_size|^ks?$|^kernel_?size", 3),
    (r"^(layer_?|block_?|level_?)?(idx|index|id)$|layer_(idx|id|index|num(ber)?)$|_idx$|_index$", 0),
    (r"spatial_dim|(^|_)n_?dims?$|num_dims?$|^dimensions?$|dimensionality|(^|_)ndim$", 2),
    (r"interval|freq(uency)?$|every|period|patience|log_?step", 2),
    (r"(num|n)_?patches", 16),
    (r"patch", 4),
    (r"window|^ws$", 4),
    (r"(img|image|resolution|spatial|crop|grid|input_res|feat)(_?size|_?res(olution)?)|^(img|image|resolution)$|img_dim"
     r"|^(height|[hw])$|frame_size|(img|hr|lr|image|crop|input)_(height|width|[hw])$", IMAGE),
    (r"vocab|(num|n)_?(tokens?|embeddings?|words|items|nodes|users|entities|chars|codes)|dict(ionary)?_size|^ntokens?$"
     r"|codebook_size|num_embed$|^n_?vocab", VOCABULARY),
    (r"batch_?size|^bs$|^batch$|^b$", BATCH),
    (r"n_?class(es)?$|n(um)?_?(class(es)?|labels?|categories|targets)|^classes$|^outputs?$", CLASSES),
    (r"(max_?)?(seq|sequence|context|ctx|block|text|token|prompt|target|source|src|tgt)_?(len|length|size)"
     r"|max_?(len|length|pos|seq|target|source)|position|n_?ctx|^(seq_?len|length|n_?frames|t_max|frames|time_?steps?)$"
     r"|timesteps|num_(frames|steps|timesteps|points|queries|latents|slots)|^T$|horizon|pred_len", LENGTH),
    (r"(kv|key_value|query_group).*(heads|groups)|heads_kv|n_?kv", 2),
    (r"(head_?dim|dim_?(per_)?head|d_?head|head_?(size|width|channels)|^d_?[kvq]$|qk_dim|kv_dim|rot(ary)?_dim"
     r"|dim_?(keys?|values?))", WIDTH // HEADS),
    (r"heads?$|n_?heads?|num_.*heads", HEADS),
    (r"^groups$|num_parallel|cardinality", 1),
    (r"groups?$|n_?groups", 4),
    (r"expert", 4),
    (r"top_?k|^k_?top", 2),
    (r"(layers?|depths?|blocks?|stages?|levels?|repeats?|stacks?|recycl\w*|rounds|iters?|iterations|n_res|hops|cells)$"
     r"|^(n|num)_?(layer|block|res|down|up|conv|enc|dec)\w*|^depth|^l$|n_steps?", DEPTH),
    (r"epochs?$", 1),
    (r"stride|dilation|^s$|^d$", 1),
    (r"padding|^pad$", 1),
    (r"reduction|squeeze|rd_ratio|ratio_?sr|^r$|compress", 4),
    (r"(ratio|mult(iplier)?|expansion|expand|factor|upscale|scale_factor|growth)$|^(mlp|ff)_?mult", 2),
    (r"growth_rate", 8),
    (r"dropout|drop|prob|^p$|_p$|(mask|noise)_?rate|sparsity", 0.1),
    (r"eps(ilon)?$|^tol", 1e-5),
    (r"momentum|decay", 0.1),
    (r"(^|_)lr$|learning_?rate|step_?size", 0.01),
    (r"temp(erature)?$|tau|alpha|beta|gamma|scale$|scaling|weight$|margin|lambda|lamb|coef|sigma|std|theta|gain|threshold"
     r"|(^|_)rate$|delta|power|^(min|max)_?(val|value)?$|radius|cutoff|slope|bandwidth|variance|init_value", 1.0),
    (r"seed", 0),
    (r"(ff|ffn|mlp|inner|intermediate|feed_?forward|fc)_?(dim|size|hidden|width|channels)|d_ff|dim_ff|dim_feedforward"
     r"|n_inner|hidden_mult", 2 * WIDTH),
    (r"dim|hidden|embed|emb|width|chan|feat|plane|d_model|size|units|filters|n[gdc]?f$|^inp|^oup|^in|^out|latent|code"
     r"|bottleneck|rank|^c$|^d_|ch$|_ch|_in|_out|n?in$|n?out$|inner|model|^c\d|state|base|^h\w?d?$|^e$|^f$|cond|obs|act",
     WIDTH),
]
COMPILED = [(re.compile(pattern), value) for pattern, value in TABLE]  # once, not in every child
FLAGS = re.compile(
    r"^(use|is|has|with|do|enable|return|apply|add|no|share|tie|pre|as|include|exclude|skip|keep|force|freeze|train|only"
    r"|should|output|concat|log|clip|predict)_|^(causal|bias|affine|inplace|bidirectional|batch_?first|residual|verbose"
    r"|training|normalize|enabled?|active|strict|track\w*|fused|flash\w*|learnable|trainable|pretrained|reverse|shuffle|deterministic|debug"
    r"|shortcut|downsample|upsample|final|first|last|cross|qkv_bias|elementwise_affine|norm_first|ceil_mode|transpose"
    r"|shift|downscale|relative|symmetric|stochastic|gated|checkpoint\w*|dynamic|cached|normalized|masked|bn|self_loops"
    r"|dry_run|no_\w+|distributed|amp|fp16|bf16|evaluate|resume|cuda|mps|accel|save_model|decoder|cosine|half|add_self_loops|root_weight|cls_token|class_token|fast|linear|complex|quiet|lazy|sparse)$"
    r"|_(bias|norm|flag|enabled|first|only|affine|free|residual|attn_bias)$"
)
#: Numbers that are no sizes: making them smaller would change what the code does.
KEPT = re.compile(r"kernel|ksize|idx|index|stride|dilation|padding|ratio|mult|factor|expan|token_id|_id$|seed|eps")
PADDING = re.compile(r"(^|_)pad(ding)?_(token_)?(id|idx|index)$")
NO_FLAGS = re.compile(r"interval|freq|every|size|rate|level|path|_dir$|steps?$")
TRUE = re.compile(r"bias|affine|residual|batch_?first|track|learnable|trainable|training")
#: What makes a part of a model small that is configured by a dictionary.
PART = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": DEPTH, "vocab_size": VOCABULARY,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": WIDTH // HEADS}
#: Sizes of the axes of rotary embeddings, which add up to the size of a head, and small ones in their place.
AXES = re.compile(r"axes_dims?(_rope)?$|rope_(axes_)?dims?$|rope_dim_list$")
SPLIT = {2: (4, 4), 3: (4, 2, 2), 4: (2, 2, 2, 2)}
MODULES = re.compile(
    r"(^|_)(model|net|network|backbone|encoder|decoder|module|layer|fn|block|head|body|stem|trunk|generator|discriminator"
    r"|critic|actor|policy|teacher|student|unet|classifier|extractor|base_?model|submodule|transformer|embedder|vae|mlp"
    r"|attn|attention|ff|feed_?forward|linear|conv|projection|nn|gnn|wrapped|to_wrap|G|D|netG|netD|phi|mapping)$"
)
ACTIVATIONS = re.compile(r"(^|_)(act|activation|non_?linear\w*|actv|activ|gate_fn|act_\w+|activation_\w+|nl)$")
NORMS = re.compile(r"(^|_)(norm|normalization|norm_?layer|norm_?fn|bn|norm_\w+|normalize_fn)$")
CONFIGS = re.compile(
    r"(^|_)(config|cfg|conf|args|hparams|hps?|opt|opts|options|params|configuration|hyper_?params|settings|argv|flags"
    r"|model_config|model_args|h|c)$"
)
STRINGS = re.compile(r"(^|_)(name|mode|type|kind|method|variant|prefix|path|dir|file|task|split|tag|arch|style"
                     r"|reduction|padding_mode|strategy|backend|format|device_type|loss_type|init)$|_name$|_type$|_path$|_mode$")


def snake(name: str) -> str:
    """`numHeads` and `NUM_HEADS` as `num_heads`; single capital letters stay."""
    if len(name) <= 2:
        return name
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower() if not name.isupper() else name.lower()


def number(name: str) -> int | float | None:
    """A number for a parameter of this name, or None if the name says nothing."""
    text = snake(name)
    for pattern, value in COMPILED:
        if pattern.search(text):
            return value  # type: ignore[no-any-return]
    if re.match(r"(num|n|max|min|nb)_", text):
        return 4
    return None


def is_flag(name: str) -> bool:
    """Whether the name sounds like a switch."""
    text = snake(name)
    return FLAGS.search(text) is not None and not NO_FLAGS.search(text)


def flag(name: str) -> bool:
    """The value for a switch of this name."""
    return TRUE.search(snake(name)) is not None


def is_size(name: str) -> bool:
    """Whether the name means a size that may be shrunk: a width, depth, length or count, not a kernel or rate."""
    value = number(name)
    return isinstance(value, int) and value > 1 and not KEPT.search(snake(name))


def smaller(name: str, value: Any) -> Any:
    """A default value made small, keeping the proportions of a list; unchanged if it is small already."""
    if AXES.search(snake(name)) and isinstance(value, (list, tuple)) and len(value) in SPLIT:
        return type(value)(SPLIT[len(value)])
    if type(value) is int and value >= VOCABULARY and PADDING.search(snake(name)):
        return value % VOCABULARY  # a row of the table of embeddings, which is made small as well
    if isinstance(value, bool) or not is_size(name):
        return value
    small = number(name)
    match value:
        case int() if small is not None and value > small:
            return small
        case [first, *_] if all(type(item) is int for item in value) and first > 0 and small is not None:
            if max(value) <= 2 * small:
                return value
            unit = max(first // small, 1) if first >= small else 1
            made = [max(item // unit, 1) for item in value]
            if number(name) == DEPTH:
                made = [1] * len(value)
            return tuple(made) if isinstance(value, tuple) else made
    return value
