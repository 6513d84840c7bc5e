"""`hplm create`, `update` and `list` for every task, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import cli
from backends.engine.failed_audits import FailedAudits
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import sample_texts, write_pairs, write_tagged, write_task, write_values
from builder.construct.training.checkpoint import Checkpoint
from builder.levels import plan

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_home: Home) -> Run:
    """The command in this process, on a home of its own: exit code, stdout, stderr with the reason of a failure."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hplm", *arguments, "--home", str(tiny_home.path)])
        try:
            cli.main()
            code: int | str | None = 0
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return (1, out, err + code) if isinstance(code, str) else (code or 0, out, err)

    return command


def files(train: Path, dev: Path) -> tuple[str, ...]:
    return ("--train", str(train), "--dev", str(dev), "--epochs", "1")


def test_unknown_names_are_rejected_before_torch_is_imported(tiny_home: Home, tmp_path: Path) -> None:
    """PyTorch takes seconds to import."""
    made_from = files(*write_task(tmp_path, "topic", 5))
    of_domain = ("--corpus", str(tmp_path / "train.jsonl"))
    wrong = [
        ("create", "new/topic", "--domain", "nowhere", *made_from),
        ("create", "new/topic", "--domain", "farm", "--root", "none", *made_from),
        ("update", "acme/none", *made_from),
        ("update", "acme/topic", "--domain", "nowhere", *made_from),
        ("domain", "create", "new", "--parent", "nowhere", *of_domain),
        ("domain", "update", "nowhere", *of_domain),
        ("domain", "update", "farm", "--parent", "nowhere", *of_domain),
    ]
    code = f"""
import sys, cli
for command in {wrong!r}:
    sys.argv = ["hplm", *command, "--home", {str(tiny_home.path)!r}]
    try:
        cli.main()
    except SystemExit as stop:
        print(stop.code, "torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["3 False"] * len(wrong), run.stderr


def test_every_task(run: Run, tmp_path: Path) -> None:
    for name, write, more in (
        ("ner", write_tagged, ()),
        ("value", write_values, ("--task", "regression")),
        ("pair", write_pairs, ()),
    ):
        code, out, err = run(
            "create", f"new/{name}", "--domain", "farm", *files(*write(tmp_path / name, 7)), *more, "--json"
        )
        assert code == 0, err
        created = json.loads(out)
        assert created["main_metric"] == {"ner": "f1", "value": "pearson", "pair": "accuracy"}[name]
        assert f"dev_{created['main_metric']}" in created
        assert created["pair"] == (name == "pair")
    _, out, _ = run("list", "--json")
    tasks = {row["id"]: row["task"] for row in json.loads(out)}
    assert [tasks[f"new/{name}"] for name in ("ner", "value", "pair")] == ["ner", "regression", "classification"]


def test_wrong_files_for_a_task_are_one_line(run: Run, tmp_path: Path) -> None:
    singles, pairs = write_task(tmp_path / "s", "mood", 7), write_pairs(tmp_path / "p", 7)
    tagged, values = write_tagged(tmp_path / "t", 7), write_values(tmp_path / "v", 7)
    for train, dev, more, message in (
        (singles[0], pairs[1], (), "dev.jsonl holds pairs of texts"),
        (tagged[0], tagged[1], ("--task", "classification"), "as for the task ner, not classification"),
        (singles[0], singles[1], ("--task", "ner"), "train.jsonl:1: not token<TAB>tag"),
        (singles[0], singles[1], ("--task", "regression"), "'label' must be a number"),
        (values[0], values[1], (), "numbers are for --task regression"),
    ):
        code, _, err = run("create", "new/one", "--domain", "farm", *files(train, dev), *more)
        assert code == 2
        (line,) = (line for line in err.splitlines() if line.strip())
        assert message in line
    assert run("create", "new/one", "--domain", "farm", *files(*singles), "--task", "poetry")[0] != 0


def test_a_search_shows_its_trials(run: Run, tmp_path: Path) -> None:
    train = files(*write_task(tmp_path, "mood", 7, train=40))
    recipe = ("--bottleneck", "4", "--entrance", "3")
    code, out, err = run("create", "new/one", "--domain", "farm", *train, *recipe, "--search", "2")
    assert code == 0, err
    assert "learning_rate\t" in out
    _, out, _ = run("show", "new/one", "--json")
    first, second = json.loads(out)["search"]
    assert first["width"] == 4
    assert first["adapters"][-1] == second["adapters"][-1] == "entrance of 3"


def test_settings_from_a_file_and_options_above_them(run: Run, tmp_path: Path) -> None:
    train = files(*write_task(tmp_path, "mood", 7, train=40))
    settings = tmp_path / "tune.json"
    settings.write_text('{"pooling": "cls", "epochs": 30, "recipe": {"width": 6, "norm_sites": ["output"]}}')
    create = ("create", "new/one", "--domain", "farm", *train, "--settings", str(settings))
    code, _, err = run(*create, "--bottleneck", "5")
    assert code == 0, err
    for content, message in (
        ("[1]", "holds no object"),
        ('{"epochs"', "is not JSON"),
        ('{"speed": 1}', "tuning setting 'speed' is unknown"),
        ('{"recipe": {"sites": []}}', "tuning setting 'recipe.sites' is unknown"),
        ('{"recipe": 4}', "holds no object"),
        ('{"learning_rate": null}', "'learning_rate' cannot be"),
        ("[" * 100_000, "is not JSON"),
        ('{"pooling": "none"}', "'pooling' cannot be 'none': Input should be 'cls' or 'mean'"),
    ):
        settings.write_text(content)
        code, _, err = run(*create)
        assert code == 2
        assert message in err.splitlines()[-1]
    settings.unlink()
    code, _, err = run(*create)
    assert code == 2
    assert "tune.json cannot be read" in err.splitlines()[-1]


def test_updates_that_are_refused_are_one_line(run: Run, tmp_path: Path) -> None:
    train, dev = write_task(tmp_path, "mood", 7)
    command = ("--train", str(train), "--dev", str(dev), "--learning-rate", "0.01")
    assert run("create", "new/one", "--domain", "farm", *command, "--epochs", "8")[0] == 0
    swapped = {"glad": "sad", "sad": "glad"}
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    train.write_text("".join(json.dumps({**row, "label": swapped[row["label"]]}) + "\n" for row in rows))
    code, _, err = run("update", "new/one", *command, "--epochs", "3", "--from-scratch")
    assert code == 7
    assert "nothing was published, and --force publishes it all the same" in err.splitlines()[-1]
    code, out, _ = run("update", "new/one", *command, "--epochs", "3", "--from-scratch", "--force", "--json")
    updated = json.loads(out)
    assert (updated["version"], updated["previous_version"]) == (2, 1)
    assert updated["previous_dev_accuracy"] > updated["dev_accuracy"]


def test_texts_without_labels_need_a_teacher_and_two_halves_where_pairs_are_learnt(run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a text that nobody has labelled\n")
    create = ("create", "new/one", "--domain", "farm")
    code, _, err = run(*create, *files(*write_task(tmp_path / "s", "mood", 7)), "--unlabelled", str(texts))
    assert code != 0 and "unlabelled texts need a teacher: dedicated" in err
    taught = ("--teacher", "dedicated", "--unlabelled", str(texts))
    code, _, err = run(*create, *files(*write_pairs(tmp_path / "p", 7)), *taught)
    assert code != 0 and "texts.txt:1: one text; a task of pairs needs two in each line" in err
    code, out, err = run(*create, *files(*write_task(tmp_path / "s", "mood", 7, train=20)), *taught, "--json")
    assert code == 0, err
    created = json.loads(out)
    assert created["unlabelled_texts"] == 1
    assert 0 <= created["teacher_dev_accuracy"] <= 1


@pytest.mark.parametrize(("stop", "ends_with"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_says_that_its_command_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals, ends_with: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    of_ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def interrupted(checkpoint: Checkpoint, content: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), stop)
        time.sleep(10.0)

    wanted = ("create", "new/one", "--domain", "farm", *files(*write_task(tmp_path / "s", "mood", 7)))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", interrupted)
        code, _, err = run(*wanted)
    assert (code, err.splitlines()[-1]) == (ends_with, "hplm: interrupted; the same command goes on where this one was")
    signal.signal(signal.SIGINT, of_ctrl_c)
    assert signal.getsignal(signal.SIGTERM) == before
    assert run(*wanted)[0] == 0


def test_eval_tells_what_create_told(run: Run, tmp_path: Path) -> None:
    for name, write, more in (("ner", write_tagged, ()), ("mood", write_task_of_moods, ())):
        train, dev = write(tmp_path / name, 7)
        code, out, err = run("create", f"new/{name}", "--domain", "farm", *files(train, dev), *more, "--json")
        assert code == 0, err
        created = json.loads(out)
        code, out, err = run("eval", f"new/{name}", str(dev), "--json")
        assert code == 0, err
        found = json.loads(out)
        metric = found["main_metric"]
        assert found[metric] == created[f"dev_{metric}"]
        assert (found["id"], found["version"], found["texts"]) == (f"new/{name}", 1, created["dev_texts"])


def test_eval_counts_unknown_labels_as_wrong_and_says_which_texts_were_trained_on(run: Run, tmp_path: Path) -> None:
    train, dev = write_task_of_moods(tmp_path / "mood", 7)
    assert run("create", "new/mood", "--domain", "farm", *files(train, dev))[0] == 0
    lines = [json.loads(line) for line in train.read_text().splitlines()]
    unknown = tmp_path / "unknown.jsonl"
    unknown.write_text("".join(json.dumps({**line, "label": "never seen"}) + "\n" for line in lines))
    found = json.loads(run("eval", "new/mood", str(unknown), "--json")[1])
    assert found["accuracy"] == 0.0
    assert found["trained_on"] == len(lines)
    assert found["unknown_labels"] == ["never seen"]
    assert "unknown_labels" not in json.loads(run("eval", "new/mood", str(dev), "--json")[1])
    assert "file of examples none.jsonl does not exist" in run("eval", "new/mood", "none.jsonl")[2]


def test_eval_of_a_wrong_file_is_one_line(run: Run, tmp_path: Path) -> None:
    train, dev = write_task_of_moods(tmp_path / "mood", 7)
    assert run("create", "new/mood", "--domain", "farm", *files(train, dev))[0] == 0
    for path, message in (
        (write_pairs(tmp_path / "p", 7)[1], "dev.jsonl holds pairs of texts, but hPLM 'new/mood' reads single texts"),
        (write_tagged(tmp_path / "t", 7)[1], "as for the task ner, not classification"),
    ):
        code, _, err = run("eval", "new/mood", str(path))
        assert code == 2
        assert message in err


def write_task_of_moods(folder: Path, seed: int) -> tuple[Path, Path]:
    return write_task(folder, "mood", seed)


def test_select_for_one_hplm_or_for_all(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    texts, target = tmp_path / "texts.txt", ("--agreement", "0.8", "--guarantee", "fleet")
    texts.write_text("".join(text.text + "\n" for text in sample_texts(900, 915)))
    code, out, err = run("select", "--all", "--unlabelled", str(texts), *target, "--json")
    rows = {row["id"]: row for row in json.loads(out)}
    assert code == (0 if all(row["outcome"] == "selected" for row in rows.values()) else 7), err
    assert rows.keys() >= {"acme/topic", "acme/mood"} and rows["acme/topic"]["outcome"] == "selected"
    _, out, _ = run("select", "--all", "--show", "--json")
    told = {row["id"]: row for row in json.loads(out)}
    assert told["acme/topic"]["levels"] == ["early", "full"] and told["acme/topic"]["guarantee"] == "fleet"
    assert told["acme/topic"]["bound"] == rows["acme/topic"]["bound"] <= 0.2 and told["acme/topic"]["audit"] is None
    FailedAudits(tiny_home, "bf16").note(Registry.open(tiny_home).hplm("acme/topic"), texts=40, different=9)
    assert "failed: 9 of 40 differed" in run("select", "acme/topic", "--show")[1]
    assert "failed: 9 of 40 differed" in run("select", "--all", "--show")[1]
    assert run("verify")[0] == 0, "a server's note is no damage"


def labelled(path: Path, count: int, seed: int) -> str:
    rows = [{"text": text.text, "label": text.topic} for text in sample_texts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_an_interrupted_selection_names_its_own_command(
    run: Run, tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, held_out = labelled(tmp_path / "a.jsonl", 160, 100), labelled(tmp_path / "b.jsonl", 400, 901)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    target = ("--held-out", held_out, "--max-drop", "25", "--certainty", "0.8")
    with monkeypatch.context() as patch:
        patch.setattr(plan, "select_ladder", interrupted)
        code, _, err = run("create", "new/one", "--domain", "farm", *files(Path(train), Path(train)), *target)
    command = f"select new/one --train {train} --held-out {held_out} --max-drop 25 --certainty 0.8"
    goes_on = f"hplm: interrupted; 'hplm {command} --home {tiny_home.path}' goes on where this one was"
    assert (code, err.splitlines()[-1]) == (130, goes_on)
    assert run(*command.split())[0] == 0


def test_an_update_goes_on_with_the_ladder(run: Run, tmp_path: Path) -> None:
    train, held_out = labelled(tmp_path / "a.jsonl", 160, 100), labelled(tmp_path / "b.jsonl", 500, 901)
    few, dev = labelled(tmp_path / "c.jsonl", 20, 902), labelled(tmp_path / "d.jsonl", 60, 903)
    target = ("--max-drop", "20", "--certainty", "0.8")
    code, out, err = run("select", "acme/topic", "--train", train, "--held-out", held_out, *target, "--json")
    assert code == 0, err
    selected = json.loads(out)
    update = ("update", "acme/topic", "--train", train, "--dev", dev, "--epochs", "1", "--force", "--json")
    for file, message in ((str(tmp_path / "none.jsonl"), "none.jsonl"), (few, "takes at least 100")):
        code, _, err = run(*update, "--held-out", file)
        assert code != 0 and message in err
    code, _, err = run(*update, "--max-drop", "3")
    assert code != 0 and "--max-drop needs --held-out" in err
    code, out, err = run(*update, "--held-out", held_out)
    assert code == 0, err
    assert f"--held-out {held_out} --max-drop 20 --certainty 0.8" in err and "--after" not in err
    picture = tmp_path / "levels.svg"
    _, out, _ = run("select", "acme/topic", "--show", "--svg", str(picture), "--json")
    told = json.loads(out)
    assert {each["after"] for each in told["candidates"]} == {1, 2}
    assert [each["after"] for each in told["candidates"] if each["chosen"]] == [1]
    assert picture.read_text().startswith("<svg") and "after 1: " in picture.read_text()
    _, out, _ = run("select", "acme/topic", "--show")
    assert "\t".join(told["candidates"][0]) in out
    assert told["version"] == selected["version"] + 2 and told["levels"] == ["early", "full"]
    assert {key: told[key] for key in ("loss", "tolerance", "certainty", "after")} == {
        "loss": "max-drop",
        "tolerance": 0.2,
        "certainty": 0.8,
        "after": 1,
    }
    code, out, err = run(*update)
    assert code == 0 and "is live, without a ladder: it was tuned for a drop of at most 20 points" in err
    without = json.loads(out)
    assert (without["version"], without["declared"]["tolerance"]) == (told["version"] + 1, 0.2)


def test_a_creation_comes_with_its_ladder(run: Run, tmp_path: Path) -> None:
    train, held_out = labelled(tmp_path / "a.jsonl", 480, 100), labelled(tmp_path / "b.jsonl", 400, 901)
    create = ("create", "new/easy", "--domain", "farm", *files(Path(train), Path(train)))
    code, out, err = run(*create, "--held-out", held_out, "--max-drop", "25", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert (made["version"], made["levels"], made["declared"]["tolerance"]) == (2, ["early", "full"], 0.25)


PLAIN = ("--unlabelled", "a.txt", "--agreement", "0.9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either the ID of an hPLM, or --all"),
        (("acme/topic", "--all"), "either the ID of an hPLM, or --all"),
        (("acme/topic",), "--train and --held-out are needed, or --unlabelled"),
        (("acme/topic", "--unlabelled", "a.txt", "--train", "b.jsonl"), "either --unlabelled, or --train"),
        (("--all", "--train", "a.jsonl", "--held-out", "b.jsonl"), "--all goes by --unlabelled"),
        (("acme/topic", "--unlabelled", "a.txt"), "needs labels; texts without labels certify --agreement"),
        (("acme/topic", *PLAIN, "--guarantee", "fleet", "--certainty", "0.9"), "promises a mean, and takes none"),
        (("acme/topic", *PLAIN, *(3 * ("--after", "1"))), "at most 2 layers to choose from, not 3"),
        (("acme/topic", *PLAIN, "--guarantee", "all"), "'all' is not one of"),
        (("acme/none", "--show"), "acme/none"),
        (("globex/topic", "--show", "--svg", "a.svg"), "'globex/topic' has no candidates to draw"),
        (("acme/topic", "--show", "--svg", "nowhere/a.svg"), "nowhere, where --svg is to be written, is no folder"),
        (("--all", *PLAIN, "--svg", "a.svg"), "--svg draws the candidates of one hPLM"),
        (("acme/topic", *PLAIN, "--deadline-ms", "0"), "a deadline is a number of milliseconds above 0, not 0"),
        (("acme/topic", *PLAIN, "--deadline-ms", "50"), "there is none that holds for the export"),
    ],
)
def test_what_select_does_not_take(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run("select", *arguments)
    assert code != 0 and message in err
