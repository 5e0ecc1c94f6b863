"""What inputs of networks are, by the names that people give to them."""
from __future__ import annotations

import re

from runtime_check import names
from runtime_check.entries import STEPS

TOKENS = re.compile(r"(^|_)(input_)?(ids?|tokens?|idx|indices|index|words|chars|labels?|targets?|captions?|text"
                    r"|sentences?|y"
                    r"|species|atomic_numbers|z|codes|position_ids|seqs?|items?|user|users|node_type|edge_type|classes)$")
MASKS = re.compile(r"(^|_)(masks|valid|is_\w+|dead|keep|alive)$|(mask|indicator)$")
TIMES = re.compile(r"^(t|ts|time|times|time_?steps?|time_?step_ratio|noise_level|sigma|sigmas|steps?|timestep_cond"
                   r"|noise_labels)$")
#: One vector for each item of a batch, which layers of a larger network take beside their input.
CONDITIONS = re.compile(r"^(temb|t_?emb|time_?emb\w*|timestep_emb\w*|emb|pooled_\w+|class_emb\w*|global_cond"
                        r"|adaln_input|vec|style)$")
ROTARY = re.compile(r"^(position_embeddings|(\w+_)?rotary_(pos_)?emb\w*|rope|freqs_cis|rotary|cos|sin)$")
STEPPED = re.compile(r"(hidden_states?|inputs?_embeds|sequence_output)$")
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
CONTEXTS = re.compile(r"^(encoder_hidden_states|context|cross_attention_states|encoder_states|memory)$")
CONTEXT_SIZES = ("cross_attention_dim", "context_dim", "encoder_hidden_size", "kdim")
IMAGE_SIZES = ("image_size", "img_size", "sample_size", "input_size")
HEAD_SIZES = ("head_dim", "attention_head_dim", "dim_head", "head_size", "attention_head_size")
SHAPES = re.compile(r"(^|_)(shape|size)$")
LENGTHS = re.compile(r"(^|_)(len|lens|lengths?|sizes|num_\w+)$")
STATES = re.compile(r"(^|_)(h|hx|hidden|hiddens|state|states|h0|c0|h_0|prev_state|cache|past_\w+|hidden_states?_prev)$")
#: Attributes by which an object that holds tensors is told from a configuration.
TENSORS_OF_OBJECTS = frozenset({"x", "edge_index", "edge_attr", "batch", "pos", "y", "input_ids", "attention_mask"})
IMAGES = re.compile(r"(^|_)(img|imgs|image|images|pixels?|pixel_values|frame|rgb|depth|photo|picture)$")
#: Attributes in which modules keep the width of their input.
WIDTHS = ("dim", "embed_dim", "hidden_size", "in_channels", "in_features", "d_model", "channels", "input_dim")
#: Sizes that people name in shape comments, patterns and unpackings.
AXES: list[tuple[str, int]] = [
    (r"^(b|bs|bsz|bsize|batch|batch_?size|batches)$", names.BATCH),
    (r"^(h|w|height|width|hh|ww|h\d|w\d|x|y|rows|cols|size)$", names.IMAGE),
    (r"^(t|l|n|s|seq|seq_?len|len|length|time|times|frames|tokens|tgt_len|src_len|num_\w+|n_\w+|i|j|q|k|time_?steps|samples"
     r"|seq_length|points|nodes|sequence)$", STEPS),
    (r"^(3|rgb)$", 3),
    (r"^(1)$", 1),
]
