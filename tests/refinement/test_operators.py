"""The operators: what they may change, and what they never do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptrl.errors import ConfigError
from promptrl.execution.verdict import Outcome, Status, TestResult, Verdict
from promptrl.models.base import Generation, GenerationRequest
from promptrl.refinement.episode import Episode, Individual, Proposal, Step
from promptrl.refinement.operators import OperatorContext, OperatorSettings, make_operators
from promptrl.refinement.prompt import Prompt, protected_spans
from promptrl.refinement.semantic import Semantic, SemanticSettings, clean_rewrite
from promptrl.tasks.task import CallTest, PytestFiles, PytestTest, TestSuite
from tests.refinement.samples import INSTRUCTIONS, episode_of
from tests.scripted import HashingEncoder, ScriptedModel


def failed_step(instruction: str) -> Step:
    verdict = Verdict(Status.FAILED, (TestResult(Outcome.WRONG, "7"),))
    generation = Generation("", 1, 1, "stop")
    return Step(0, "direct", Prompt(instruction, "def f(x):"), 0, generation, "code", verdict, -1.0, False, False)


@settings(max_examples=60, deadline=None)
@given(INSTRUCTIONS, st.lists(st.sampled_from(["lexical", "semantic", "direct"]), max_size=5), st.text(max_size=80))
def test_no_operator_in_any_order_changes_the_contract_or_protected_spans(
    instruction: str, actions: list[str], rewrite: str
) -> None:
    context = OperatorContext(ScriptedModel(lambda request: rewrite), HashingEncoder(), OperatorSettings(), 0)
    operators = make_operators(("direct", "lexical", "semantic"), context)
    episode = episode_of(instruction)
    for action in actions:
        (proposal,) = operators[action].propose([episode])
        episode.prompt = proposal.prompt
        episode.population.append(Individual(proposal.prompt, 0.0))
    assert episode.prompt.contract == episode.original.contract
    assert protected_spans(episode.prompt.instruction) >= protected_spans(instruction)


def semantic(answer: str, **settings_: object) -> tuple[Semantic, ScriptedModel]:
    model = ScriptedModel(lambda request: answer)
    return Semantic(model, HashingEncoder(), SemanticSettings.model_validate({"place": "instead", **settings_})), model


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "rewrite empty; prompt kept"),
        ("```python\ndef f(x): return 2\n", "rewrite empty; prompt kept"),
        ("Find the biggest value of the list.", "rewrite dropped `xs`; prompt kept"),
        ("Find the biggest value of `xs`.", "rewrite changed nothing; prompt kept"),
        ("Read `xs`.", "rewrite dropped most of the words; prompt kept"),
        ("Find the top of `xs`. Keep exactly as here: `xs`.", "rewrite repeats the request; prompt kept"),
        (
            "Bananas grow in `xs` quite far away from any computer whatsoever, they say.",
            "rewrite drifted from the task",
        ),
        ("`xs` " + "word " * 300, "rewrite longer than allowed; prompt kept"),
    ],
)
def test_bad_rewrites_keep_the_prompt_and_say_why(answer: str, reason: str) -> None:
    episode = episode_of("Find the biggest value of `xs`.")
    (proposal,) = semantic(answer)[0].propose([episode])
    assert proposal.prompt == episode.prompt
    assert proposal.note is not None
    assert proposal.note.startswith(reason)
    assert len(proposal.rewrites) == 1


def test_good_rewrite_is_taken() -> None:
    episode = episode_of("Find the biggest value of `xs`.")
    (proposal,) = semantic(' Find the biggest value of the list `xs`, or "None".')[0].propose([episode])
    assert proposal == Proposal(
        episode.prompt.with_instruction('Find the biggest value of the list `xs`, or "None".'),
        None,
        proposal.rewrites,
    )


def test_a_rewrite_goes_on_from_the_opening_that_the_model_was_given() -> None:
    operator, model = semantic(" a list `xs` and returns the biggest value in it.", similarity_floor=-1.0)
    (proposal,) = operator.propose([episode_of("Find the biggest value of `xs`.")])
    assert model.requests[0].prefill == "Description: Write a function that takes"
    assert proposal.prompt.instruction == "Write a function that takes a list `xs` and returns the biggest value in it."
    assert proposal.note is None


def test_a_rewrite_after_the_instruction_takes_the_place_of_the_one_before() -> None:
    answers = iter((" a list `xs` and returns its biggest value.", " any list and returns one value.", ""))
    operator, model = semantic("", place="after", similarity_floor=-1.0)
    model.answer = lambda request: next(answers)
    episode = episode_of("Find the biggest value of `xs`")
    found = []
    for _ in range(3):
        (proposal,) = operator.propose([episode])
        found.append((proposal.prompt.instruction, proposal.note))
        episode.prompt = proposal.prompt
    opening = "Find the biggest value of `xs`. In other words: write a function that takes "
    second = opening + "any list and returns one value."
    assert found == [
        (opening + "a list `xs` and returns its biggest value.", None),
        (second, None),
        (second, "rewrite empty; prompt kept"),
    ]
    # Each rewrite is of the prompt as it was, the clarification before it included.
    assert ["its biggest value" in request.user for request in model.requests] == [False, True, False]


def test_a_task_that_says_in_other_words_itself_loses_nothing() -> None:
    operator, _ = semantic(" a list.", place="after", similarity_floor=-1.0)
    episode = episode_of("Sort `xs`. In other words: put the least first.")
    for _ in range(2):
        (proposal,) = operator.propose([episode])
        episode.prompt = proposal.prompt
    told = "Sort `xs`. In other words: put the least first. In other words: write a function that takes a list."
    assert episode.prompt.instruction == told


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (0, ""),
        (1, " It must also pass: assert f(2) == 5"),
        (9, " It must also pass: assert f(2) == 5; assert f(3) == 'a'"),
    ],
)
def test_a_rewrite_ends_with_tests_that_failed_and_that_the_task_does_not_show(most: int, told: str) -> None:
    operator, _ = semantic(" a number.", place="after", failed_tests=most, similarity_floor=-1.0)
    episode = episode_of("Double it, so that f(1) is 2.")
    episode.prompt = episode.original = Prompt(episode.prompt.instruction, "assert f( 1 )==2")
    shown, failed, text, long = (CallTest((1,), 2), CallTest((2,), 5), CallTest((3,), "a"), CallTest((4,), "b" * 200))
    named = PytestTest("test_f.py::test_f", PytestFiles("f", (), ()))
    episode.suite = TestSuite("base", (shown, failed, text, long, CallTest((5,), 6), named))
    outcomes = (Outcome.WRONG, Outcome.WRONG, Outcome.PASSED, Outcome.WRONG, Outcome.NOT_RUN, Outcome.WRONG)
    for results in (outcomes, (*outcomes[:2], Outcome.EXCEPTION, *outcomes[3:])):
        step = failed_step(episode.prompt.instruction)
        verdict = replace(step.verdict, results=tuple(TestResult(outcome, "") for outcome in results))
        episode.steps.append(replace(step, verdict=verdict))
    for _ in range(2):  # once more, from the prompt that shows them already
        (proposal,) = operator.propose([episode])
        episode.prompt = proposal.prompt
    assert episode.prompt.instruction == (
        f"Double it, so that f(1) is 2. In other words: write a function that takes a number.{told}"
    )


@pytest.mark.parametrize(
    ("feedback", "shown", "hidden"),
    [
        ("none", "", "passed 0 of 1"),
        ("status", "passed 0 of 1 tests (failed)", "should give"),
        ("failing_test", "1 should give 2; wrong: 7", "nothing hidden here"),
    ],
)
def test_feedback_tells_only_what_is_allowed(feedback: str, shown: str, hidden: str) -> None:
    operator, model = semantic("", feedback=feedback)
    episode = episode_of("Find the biggest value of `xs`.")
    episode.steps.append(failed_step("Find the biggest value of `xs`."))
    operator.propose([episode])
    (request,) = model.requests
    assert shown in request.user
    assert hidden not in request.user


def test_two_calls_reflect_first_and_both_are_counted() -> None:
    def answer(request: GenerationRequest) -> str:
        return "It never says what an empty list gives." if "say what the task" in request.user else ""

    model = ScriptedModel(answer)
    operator = Semantic(model, HashingEncoder(), SemanticSettings(calls=2))
    (proposal,) = operator.propose([episode_of("Find the biggest value of `xs`.")])
    assert [len(batch) for batch in model.batches] == [1, 1]
    assert "what an empty list gives" in model.requests[1].user
    assert len(proposal.rewrites) == 2


@pytest.mark.parametrize(
    ("answer", "clean"),
    [
        ("Sure! Here is the rewritten task: Sort the list.", "Sort the list."),
        ('"Sort the list."', "Sort the list."),
        ("**Description:** Sort the list.", "Sort the list."),
        ("Sort the list.\n```python\ndef f(): pass\n```", "Sort the list."),
        ("Sort the list.\ndef f(xs):\n", "Sort the list."),
        ("The new list is sorted.", "The new list is sorted."),
        ("Description: “Sort it.”", "Sort it."),
        ("A new list with these elements: the squares of `x`.", "A new list with these elements: the squares of `x`."),
        ("Here is a list of numbers: compute their sum.", "Here is a list of numbers: compute their sum."),
        ('"abc" reversed is "cba"', '"abc" reversed is "cba"'),
        ("return the sum of x", "return the sum of x"),
        ("**Task**: **Add** x and **y**", "Add x and y"),
    ],
)
def test_clean_rewrite(answer: str, clean: str) -> None:
    assert clean_rewrite(answer) == clean


class Shout:
    """A user's own operator: the instruction in capitals."""

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    def propose(self, episodes: list[Episode]) -> list[Proposal]:
        return [Proposal(e.prompt.with_instruction(e.prompt.instruction.upper())) for e in episodes]


def test_a_fourth_action_is_one_class_and_one_line() -> None:
    context = OperatorContext(ScriptedModel(lambda request: ""), HashingEncoder(), OperatorSettings(), 0)
    operators = make_operators(("direct", "tests.refinement.test_operators:Shout"), context)
    (proposal,) = operators["tests.refinement.test_operators:Shout"].propose([episode_of("Sort it.")])
    assert proposal.prompt.instruction == "SORT IT."


@pytest.mark.parametrize("action", ["lexcial", "nowhere:Thing", "tests.scripted:make_task"])
def test_an_unknown_action_is_refused_by_name(action: str) -> None:
    context = OperatorContext(ScriptedModel(lambda request: ""), HashingEncoder(), OperatorSettings(), 0)
    with pytest.raises(ConfigError, match="allowed are direct, lexical, semantic and 'module:Class' of your own"):
        make_operators((action,), context)
