"""Reads an error and proposes changed arguments: sizes, ranks, kinds, missing values.

The texts are those of torch, Python and einops. Every proposal is only tried, never trusted: a wrong
one costs one attempt.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from runtime_check.blame import Context
from runtime_check.placeholder import MissingError
from runtime_check.repair_sizes import (
    either,
    exact_shape,
    got_wanted,
    grow,
    halved_often,
    index_rank,
    matrices,
    normalized,
    rank,
    rank_by_one,
    ranks_differ,
    resize,
    unpacking,
    view_sizes,
    wanted_got,
)
from runtime_check.repair_values import (
    fill_optional,
    from_condition,
    from_sizes,
    kinds_differ,
    missing_argument,
    none_given,
    one_of,
    other_candidates,
    other_options,
    several,
    smaller_index,
    to_call,
    to_kind,
    unbound,
    unexpected_argument,
    whole_number,
)
from runtime_check.specs import Assignment

Rule = Callable[[Context, re.Match[str]], Iterator[Assignment]]
RULES: list[tuple[str, Rule]] = [
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", matrices),
    (r"to have (\d+) channels, but got (\d+) channels", wanted_got),
    (r"weight of size \[(\d+), [\d, ]*\], expected (?:input|bias)", exact_shape),
    (r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", either),
    (r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)", either),
    (r"Tensors must have same number of dimensions: got (\d) and (\d)", ranks_differ),
    (r"Sizes of tensors must match except in dimension 1", halved_often),
    (r"Expected size (\d+) (?:in dimension \d+ )?but got size (\d+)", either),
    (r"running_mean should contain (\d+) elements not (\d+)", got_wanted),
    (r"(?:Expected|expected) (\d+), got (\d+)", wanted_got),
    (r"normalized_shape=\[([\d, ]+)\], expected input with shape .*got input of size ?\[([\d, ]+)\]", normalized),
    (r"weight(?: of size|.*shape).*\[(\d+)\].*input.*\[([\d, ]+)\]", normalized),
    (r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", view_sizes),
    (r"[Kk]ernel size can't be greater|[Oo]utput size is too small|Calculated padded input size"
     r"|more than 1 value per channel|more than 1 spatial element|[Pp]adding size should be less|stride.*too|non-empty"
     r"|must be non-zero", grow),
    (r"should be (?:equal to )?\(([\d, ]+)\)|[Ee]xpected hidden|stack expects each tensor|Expected size for first two"
     r"|must have (?:the )?same shape|batch1 must be", exact_shape),
    (r"(\d)[dD](?:imensional)? (?:\(|or |input|tensor)|[Ee]xpected (\d)-?[dD]|input\.dim\(\) = \d is not equal to len"
     r"|[Ee]xpected (\d) dims|only supports? (\d)-?D|must be (\d)-?D", rank),
    (r"len\(dims\) = (\d)", rank),
    (r"Dimension out of range|too many indices|dimension specified as|IndexError: tuple index|tuple index out of range"
     r"|must be at least|have at least", rank_by_one),
    (r"not enough values to unpack \(expected (?:at least )?(\d+)", unpacking),
    (r"too many values to unpack \(expected (\d+)", unpacking),
    (r"indices' to have one of the following scalar types|used as indices must be|expected (?:scalar )?(?:type )?Long"
     r"|to be of type Long|int64|must be long|[Ee]xpected.*(?:Long|integer)|only integer tensors", to_kind("long")),
    (r"not implemented for '(?:Long|Int|Bool|Byte)'|floating point|expected (?:scalar type )?Float|can only be floating"
     r"|Got: Long|only floating|should be floating", to_kind("float")),
    (r"gradients? with respect to|does not require grad|not differentiable", to_kind("fixed")),
    (r"[Ii]ndex tensor must have the same number of dim", index_rank),
    (r"mask.*bool|bool.*mask|expected.*[Bb]ool", to_kind("bool")),
    (r"same dtype|[Ii]nput type|dtype mismatch|but found|type mismatch|Float and|Long and", kinds_differ),
    (r"between 0 and 1|range \[0, 1\]|all elements of", to_kind("unit")),
    (r"[Cc]omplex", to_kind("complex")),
    (r"index out of range|out of bounds|is out of range|index .* too large", smaller_index),
    (r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)", missing_argument),
    (r"unexpected keyword argument '(\w+)'", unexpected_argument),
    (r"local variable '(\w+)'", unbound),
    (r"NoneType", none_given),
    (r"cannot be interpreted as an integer|must be (?:an )?int|single element|one element tensors"
     r"|Boolean value of Tensor|'float' object|can't multiply sequence", whole_number),
    (r"'int' object is not (?:iterable|subscriptable)|non-iterable int|with an iterable, but got int"
     r"|object of type 'int' has no len", several),
    (r"'(?:int|float|str|Tensor|bool)' object is not callable", to_call),
    (r"'Tensor' object|has no attribute|not subscriptable|not iterable|not callable|must be Tensor|got an instance",
     other_options),
    (r"[Uu]nknown|[Uu]nsupported|not supported|[Ii]nvalid|must be (?:one of|in|either)|not in|[Ee]xpected one of"
     r"|not recogni[sz]ed|[Uu]nrecogni[sz]ed|not implemented|not found|should be", one_of),
]
COMPILED = [(re.compile(pattern), rule) for pattern, rule in RULES]


def repairs(context: Context) -> Iterator[Assignment]:
    """Changed arguments worth trying after this failure, best first."""
    if isinstance(context.failure.error, MissingError):
        return
    found = by_text(context)
    yield from itertools.islice(found, 3)
    yield from itertools.islice(fill_optional(context), 2)  # without one, the code may use another argument for it
    yield from found


def by_text(context: Context) -> Iterator[Assignment]:
    """Changes that the text of the error or the failing statement suggests, then those that are always worth a try."""
    for pattern, rule in COMPILED:
        match = pattern.search(context.text)
        if match is not None:
            yield from rule(context, match)
    refused = isinstance(context.failure.error, (AssertionError, KeyError, ValueError, NotImplementedError))
    if refused or not context.failure.operations:
        yield from from_condition(context)
    yield from from_numbers(context)
    yield from from_sizes(context)
    yield from other_candidates(context)


def from_numbers(context: Context) -> Iterator[Assignment]:
    """Numbers in the text: one that is a size of an argument may have to become another one."""
    found = list(dict.fromkeys(int(item) for item in re.findall(r"(?<![\w.])\d{1,4}(?![\w.])", context.text)))
    sizes = {size for _, spec in context.arguments.leaves() for size in spec.shape}
    for old in found:
        for new in found:
            if old in sizes and new not in (old, 0) and len(found) <= 12:
                yield from resize(context, old, new)
