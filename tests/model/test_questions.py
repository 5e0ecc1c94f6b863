"""Every question in tests/model/questions has the expected answer."""
from __future__ import annotations

from pathlib import Path

import ask
import pytest

PROGRAMS = ask.all_programs()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title.replace(" ", "-"))
def test_answers(program: ask.Program, tmp_path: Path) -> None:
    models = ask.place(program, tmp_path)
    assert program.questions, "a program without questions proves nothing"
    wrong = [
        f"{question.file}:{question.line} {question.expr or 'statement'}: {lack}"
        for question in program.questions
        for lack in ask.missing(models[question.file], question)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_enough_questions() -> None:
    assert sum(len(program.questions) for program in PROGRAMS) >= 250


def test_a_wrong_expectation_fails() -> None:
    """The partner of `test_answers`: an expectation that is not met is reported."""
    program = ask.Program("wrong", (("main.py", "import torch\nx = torch.ones(3)  #? module\n"),))
    model = ask.model_of(program.files[0][1])
    assert ask.missing(model, program.questions[0])
