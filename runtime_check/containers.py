"""Classes of a file that are made of others: a part gets from the whole what nobody gives it when it is alone."""

from __future__ import annotations

from runtime_check.calls import CallGraph

MOST = 30  # classes that are followed


def wholes(graph: CallGraph, qualname: str) -> list[str]:
    """The classes that make instances of a method's class, directly or not: those that no other one makes first."""
    holder = qualname.rpartition(".")[0]
    found = {holder: set[str]()} if holder in graph.classes else {}
    waiting = list(found)
    while waiting and len(found) < MOST:
        name = waiting.pop(0)
        for site in graph.sites(name):
            maker = site.owner.cls if site.owner is not None else ""
            if maker and maker not in graph.foreign and maker != name:
                found[name].add(maker)
                if maker not in found:
                    found[maker] = set()
                    waiting.append(maker)
    near = [name for name in found if name != holder]
    return sorted(near, key=lambda name: bool(found[name]))
