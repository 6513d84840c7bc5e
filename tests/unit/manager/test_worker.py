"""One attempt of a job, in this process."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import BertForSequenceClassification

from backends.errors import ConflictError, InvalidArgumentError, NotFoundError, TrainingDataError
from backends.home import Home
from backends.process_id import ProcessId
from backends.registry import database
from backends.registry.registry import Registry
from bench.kit.tiny_home import sample_texts, write_task
from builder.construct.hplm.dedicated_teacher import REWRITING
from builder.construct.hplm.hplms import publish_linked
from builder.construct.hplm.state_rows import find_rows
from builder.executors.mapping import map_here
from builder.importing import base
from builder.levels import plan
from builder.levels.material import LabelledFiles
from builder.levels.selecting import Selecting
from builder.locks import exclusive
from builder.manager.admission import Admission, spec_of
from builder.manager.job_context import JobContext
from builder.manager.job_log import log_path
from builder.manager.jobs import JobSpec, JobState
from builder.manager.pulse import JobCancelledError
from builder.manager.running import run_job
from builder.manager.store import JobStore
from builder.manager.targets import described
from builder.manager.upload_checks import CHECKS
from builder.manager.uploads import UploadKind, Uploads
from builder.manager.worker import run_attempt
from builder.manager.workers import TRY_AGAIN
from builder.progress import Step
from builder.requests.hplms import CreateHplm
from builder.requests.jobs import device_of, on_device, stored_request
from builder.requests.levels import DeclaredLadder
from builder.requests.targets import HplmTarget


def deletion(store: JobStore) -> int:
    spec = JobSpec(kind="hplm.delete", target="hplm:acme/topic", request={"kind": "hplm.delete", "id": "acme/topic"})
    job, _ = store.submit(spec)
    assert store.claim(job.id) is not None
    return job.id


def test_an_attempt_ends_in_the_database(tiny_home: Home) -> None:
    store = JobStore.open(tiny_home)
    job = deletion(store)
    assert run_attempt(tiny_home, job, 1, map_here) == 0
    assert store.job(job).state is JobState.DONE
    worker, me = store.job(job).worker, ProcessId.own()
    assert worker is not None and (worker.machine, worker.pid, worker.start_ticks) == astuple(me)
    assert not Registry.open(tiny_home).has_hplm("acme/topic")
    again = deletion(store)
    assert run_attempt(tiny_home, again, 1, map_here) == 0
    failure = store.job(again).failure
    assert failure is not None
    assert (failure.code, failure.message) == ("NOT_FOUND", "hPLM 'acme/topic' does not exist")
    assert failure.message in log_path(tiny_home, again).read_text()


def test_the_error_is_told_though_an_upload_has_gone(tiny_home: Home) -> None:
    store, gone = JobStore.open(tiny_home), f"task-{'0' * 64}"
    request = {"kind": "hplm.update", "id": "acme/topic", "train": gone, "dev": gone}
    job = store.submit(JobSpec(kind="hplm.update", target="hplm:acme/topic", uploads=(gone,), request=request))[0].id
    assert store.claim(job) is not None
    assert run_attempt(tiny_home, job, 1, map_here) == 0
    failure = store.job(job).failure
    assert failure is not None
    assert failure.code == "NOT_FOUND"


def test_an_attempt_that_is_not_wanted_does_nothing(tiny_home: Home) -> None:
    store = JobStore.open(tiny_home)
    job = deletion(store)
    store.requeue(store.job(job), "worker was killed by signal 9")
    assert store.claim(job) is not None
    assert run_attempt(tiny_home, job, 1, map_here) == 0
    assert Registry.open(tiny_home).has_hplm("acme/topic")
    assert store.job(job).state is JobState.RUNNING


def test_a_locked_registry_is_worth_another_attempt(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    store = JobStore.open(tiny_home)
    job = deletion(store)
    with sqlite3.connect(tiny_home.path / "registry.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert run_attempt(tiny_home, job, 1, map_here) == TRY_AGAIN
        other.execute("ROLLBACK")
    assert "locked by another process" in log_path(tiny_home, job).read_text()
    assert run_attempt(tiny_home, job, 1, map_here) == 0
    assert store.job(job).state is JobState.DONE


def test_a_later_attempt_waits_for_the_lock_of_a_lost_one(tiny_home: Home, tmp_path: Path) -> None:
    uploads, store, ids = Uploads(tiny_home, 100 << 20), JobStore.open(tiny_home), []
    for path in write_task(tmp_path, "topic", seed=61, train=60):
        with uploads.receiving(UploadKind.TASK, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids.append(incoming.keep(CHECKS[UploadKind.TASK]).id)
    request = {"kind": "hplm.update", "id": "acme/topic", "train": ids[0], "dev": ids[1], "tune": {"epochs": 1}}
    request["force"] = True
    spec = JobSpec(kind="hplm.update", target="hplm:acme/topic", uploads=tuple(ids), request=request)
    job = store.submit(spec)[0].id
    assert store.claim(job) is not None
    with exclusive(tiny_home, tiny_home.path / "bank/acme--topic", "hPLM 'acme/topic'"):
        assert run_attempt(tiny_home, job, 1, map_here) == 0
    failure = store.job(job).failure
    assert failure is not None and "is being built by another process" in failure.message

    job = store.submit(spec)[0].id
    assert store.claim(job) is not None
    store.requeue(store.job(job), "worker was lost")
    assert store.claim(job) is not None
    with ThreadPoolExecutor(1) as attempts:
        with exclusive(tiny_home, tiny_home.path / "bank/acme--topic", "hPLM 'acme/topic'"):
            status = attempts.submit(run_attempt, tiny_home, job, 2, map_here)
            log = log_path(tiny_home, job)
            while not (log.exists() and "wait for a lock" in log.read_text()):
                assert not status.done()
                time.sleep(0.1)
        assert status.result() == 0
    assert store.job(job).state is JobState.DONE


def test_an_attempt_may_train_elsewhere_than_its_job_asks_for() -> None:
    files = {"train": "task-1", "dev": "task-2"}
    tuning = {"kind": "hplm.update", "id": "acme/topic", **files, "device": "cuda:1"}
    retuning = {"kind": "hplm.import", "id": "new/one", "adapter": "adapter-1", "domain": "farm", "retune": {**files}}
    for content, device in ((tuning, "cuda:1"), (retuning, "auto")):
        request = stored_request(content)
        assert (device_of(request), device_of(on_device(request, "cpu"))) == (device, "cpu")
    for content in ({**retuning, "retune": None}, {"kind": "gc"}):
        request = stored_request(content)
        assert device_of(request) is None and on_device(request, "cuda") == request


def test_a_new_hplm_may_name_a_version_of_its_domain() -> None:
    wanted = {"kind": "hplm.create", "id": "new/one", "root": "tiny", "train": "task-1", "dev": "task-2"}
    assert str(stored_request({**wanted, "domain": "farm@2"}).needed) == "domain:tiny/farm"
    with pytest.raises(InvalidArgumentError, match="name@version"):
        _ = stored_request({**wanted, "domain": "farm@x"}).needed


def test_an_update_waits_for_its_domain(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    live = registry.hplm("acme/topic").domain
    wanted = {"kind": "hplm.update", "id": "acme/topic", "train": "task-1", "dev": "task-2"}
    for more, name in (({}, live.name), ({"domain": "pond"}, "pond"), ({"domain": "pond@2"}, "pond")):
        settled = stored_request({**wanted, **more}).settled(registry)
        assert spec_of(settled).needs == (f"domain:tiny/{name}",)
    with pytest.raises(InvalidArgumentError, match="name@version"):
        stored_request({**wanted, "id": "new/one", "domain": "farm@x"}).settled(registry)
    uploads, store = Uploads(tiny_home, 100 << 20), JobStore.open(tiny_home)
    making, _ = store.submit(
        JobSpec(kind="hplm.create", target="hplm:new/one", needs=("domain:tiny/pond",), request={}), None
    )
    admission = Admission(registry, store, uploads)
    files = {}
    for name, path in zip(("train", "dev"), write_task(tmp_path, "mood", seed=70, train=30), strict=True):
        with uploads.receiving(UploadKind.TASK, path.name) as incoming:
            incoming.write(path.read_bytes())
            files[name] = incoming.keep(CHECKS[UploadKind.TASK]).id
    follows, _ = admission.submit(stored_request({**wanted, "id": "new/one", **files}), "a key")
    assert follows.needs == making.needs
    store.finish(making, JobState.DONE)
    assert admission.submit(stored_request({**wanted, "id": "new/one", **files}), "a key") == (follows, False)
    with pytest.raises(NotFoundError, match="domain 'nosuch'"):
        admission.submit(stored_request({**wanted, "id": "new/one", **files, "domain": "nosuch"}), None)
    moved = stored_request({"kind": "domain.update", "name": "farm", "root": "tiny", "corpus": ["c"], "parent": "pond"})
    assert spec_of(moved.settled(registry)).needs == ("domain:tiny/pond",)


def test_a_request_may_ask_for_a_dedicated_teacher(tiny_home: Home, tmp_path: Path) -> None:
    uploads, ids = Uploads(tiny_home, 100 << 20), []
    for path in write_task(tmp_path, "mood", seed=70, train=60):
        with uploads.receiving(UploadKind.TASK, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids.append(incoming.keep(CHECKS[UploadKind.TASK]).id)
    train, dev = ids
    files = {"train": train, "dev": dev, "tune": {"epochs": 1}, "teacher": "dedicated"}
    swapped = {"train": dev, "dev": train}  # what a teacher has said of a file is kept
    store = JobStore.open(tiny_home)
    admission = Admission(Registry.open(tiny_home), store, uploads)
    for wanted in ({"kind": "hplm.create", "domain": "farm"}, {"kind": "hplm.update", "force": True, **swapped}):
        job, _ = admission.submit(stored_request({"id": "new/taught", **files, **wanted}), None)
        assert store.claim(job.id) is not None
        assert run_attempt(tiny_home, job.id, 1, map_here) == 0
        assert store.job(job.id).state is JobState.DONE, store.job(job.id).failure
        assert "fine-tune a whole model" in log_path(tiny_home, job.id).read_text()
    with pytest.raises(InvalidArgumentError, match="teacher"):
        stored_request({"kind": "hplm.create", "id": "new/two", "domain": "farm", **files, "teacher": "wise"})


def test_a_teacher_may_be_given_texts_without_labels(tiny_home: Home, tmp_path: Path) -> None:
    uploads, ids = Uploads(tiny_home, 100 << 20), []
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text.text}\n" for text in sample_texts(45, seed=5)))
    kinds = (UploadKind.TASK, UploadKind.TASK, UploadKind.CORPUS)
    for kind, path in zip(kinds, (*write_task(tmp_path, "mood", seed=70, train=30), texts), strict=True):
        with uploads.receiving(kind, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids.append(incoming.keep(CHECKS[kind]).id)
    wanted = dict(zip(("train", "dev", "unlabelled"), ids, strict=True), tune={"epochs": 1}, id="new/taught")
    wanted |= {"kind": "hplm.create", "domain": "farm"}
    with pytest.raises(InvalidArgumentError, match="unlabelled texts need a teacher"):
        stored_request(wanted)
    with pytest.raises(InvalidArgumentError, match=r"distil_weight of 0.5 needs labels"):
        stored_request({**wanted, "teacher": "dedicated", "tune": {"distil_weight": 0.5}})
    request = stored_request({**wanted, "teacher": "dedicated"})
    assert request.files[Path(ids[2])] is UploadKind.CORPUS
    store = JobStore.open(tiny_home)
    job, _ = Admission(Registry.open(tiny_home), store, uploads).submit(request, None)
    assert store.claim(job.id) is not None
    assert run_attempt(tiny_home, job.id, 1, map_here) == 0
    assert store.job(job.id).state is JobState.DONE, store.job(job.id).failure
    (store_of_states,) = tiny_home.states.glob(".reading-*")
    states = find_rows(store_of_states)
    assert states is not None
    assert len(states) > (1 + REWRITING.variants) * 30


def labelled(path: Path, count: int, seed: int) -> Path:
    rows = [{"text": text.text, "label": text.topic} for text in sample_texts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_ladders_are_selected_by_jobs(tiny_home: Home, tmp_path: Path) -> None:
    uploads, store = Uploads(tiny_home, 100 << 20), JobStore.open(tiny_home)
    counts = {"train": (480, 100), "dev": (60, 903), "held_out": (400, 901)}
    ids = {}
    for name, count in counts.items():
        path = labelled(tmp_path / f"{name}.jsonl", *count)
        with uploads.receiving(UploadKind.TASK, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids[name] = incoming.keep(CHECKS[UploadKind.TASK]).id
    admission = Admission(Registry.open(tiny_home), store, uploads)

    def result(**wanted: object) -> dict[str, Any]:
        job, _ = admission.submit(stored_request(wanted), None)
        assert store.claim(job.id) is not None
        assert run_attempt(tiny_home, job.id, 1, map_here) == 0
        ended = store.job(job.id)
        assert ended.state is JobState.DONE and ended.result is not None, ended.failure
        return ended.result

    tuned = {"id": "new/easy", "train": ids["train"], "dev": ids["dev"], "tune": {"epochs": 1}}
    declared = {"held_out": ids["held_out"], "max_drop": 25}
    made = result(kind="hplm.create", domain="farm", ladder=declared, **tuned)
    assert (made["version"], made["metrics"]["levels"]) == (2, ["early", "full"]) and "without_ladder" not in made
    made = result(kind="hplm.update", force=True, **tuned)
    assert made["version"] == 3 and "it was tuned for a drop of at most 25 points" in made["without_ladder"]
    texts = {"train": ids["train"], "held_out": ids["held_out"]}
    made = result(kind="hplm.select", id="new/easy", max_drop=25, **texts)
    assert (made["version"], made["metrics"]["declared"]["tolerance"]) == (4, 0.25)
    assert "warnings" not in made
    by_dev = {"id": "new/dev", "dev": ids["held_out"], "ladder": {"held_out": ids["held_out"], "target_accuracy": 0.2}}
    made = result(kind="hplm.create", domain="farm", **{**tuned, **by_dev})
    assert any("chose the epoch of this version" in warning for warning in made["warnings"])
    for wrong, message in (
        ({"max_drop": 0, **texts}, "leaves no share"),
        ({"train": ids["train"]}, "train and held_out are needed"),
        ({"unlabelled": ids["train"], **texts}, "either unlabelled"),
        ({"unlabelled": ids["train"]}, "unlabelled needs agreement"),
        ({"unlabelled": ids["train"], "max_drop": 5}, "unlabelled needs agreement"),
        ({"unlabelled": ids["train"], "agreement": 0.9}, "is a task"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            admission.submit(stored_request({"kind": "hplm.select", "id": "new/easy", **wrong}), None)
    going_on = {"kind": "hplm.select", "id": "new/easy", "default_deadline": True, **texts}
    assert admission.submit(stored_request(going_on), None)[0].kind == "hplm.select"


def test_an_update_says_what_its_version_lacks(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Students of the version before, and a ladder, whose reason names uploads as they were sent."""
    uploads, store, registry = Uploads(tiny_home, 100 << 20), JobStore.open(tiny_home), Registry.open(tiny_home)
    ids = {}
    for name, count in {"train": (60, 100), "held_out": (400, 901)}.items():
        path = labelled(tmp_path / f"{name}.jsonl", *count)
        with uploads.receiving(UploadKind.TASK, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids[name] = incoming.keep(CHECKS[UploadKind.TASK]).id
    publish_linked(
        tiny_home,
        registry,
        registry.hplm("acme/topic"),
        lambda folder: None,
        {"students": {"set": "a", "best": 2, "depth": 1.0}},
    )

    def failing(home: Home, registry: Registry, selecting: Selecting, *others: object) -> None:
        assert isinstance(selecting.files, LabelledFiles)
        raise TrainingDataError(f"{selecting.files.held_out} holds too little, {home.path}/bank/x too")

    monkeypatch.setattr(plan, "select_ladder", failing)
    wanted = {"kind": "hplm.update", "id": "acme/topic", "train": ids["train"], "dev": ids["train"], "force": True}
    wanted |= {"ladder": {"held_out": ids["held_out"], "max_drop": 25}, "tune": {"epochs": 1}}
    job, _ = Admission(registry, store, uploads).submit(stored_request(wanted), None)
    assert store.claim(job.id) is not None
    assert run_attempt(tiny_home, job.id, 1, map_here) == 0
    result = store.job(job.id).result
    assert result is not None and result["version"] == 3, store.job(job.id).failure
    assert result["without_ladder"] == "held_out.jsonl holds too little, bank/x too"
    assert "the version before 3 had some; students.add adds them" in result["without_students"]


def test_a_job_that_is_cancelled_while_it_selects_has_tuned_all_the_same(tiny_home: Home, tmp_path: Path) -> None:
    train, held_out = labelled(tmp_path / "train.jsonl", 160, 100), labelled(tmp_path / "held_out.jsonl", 400, 901)
    request = CreateHplm(
        id="new/easy",
        root="tiny",
        domain="farm",
        train=train,
        dev=train,
        tune={"epochs": 1},
        ladder=DeclaredLadder(held_out=held_out, max_drop=25),
    )
    registry = Registry.open(tiny_home)

    def cancelled(step: Step) -> None:
        if registry.has_hplm("new/easy"):
            raise JobCancelledError

    class Local(Uploads):
        def content(self, upload_id: str, kind: UploadKind) -> Path:
            return Path(upload_id)

    result = run_job(JobContext(tiny_home, registry, Local(tiny_home), cancelled, map_here), request)
    assert (result["version"], result["live"]) == (1, True) and "was cancelled" in result["without_ladder"]
    assert "hplm.select does it" in described(HplmTarget("new/easy"), registry)["without_ladder"]


def zipped_adapter(bert: Path, folder: Path, base: str) -> bytes:
    """What PEFT saves of a LoRA in the upper layers, with its head, and what it calls its base."""
    model = BertForSequenceClassification.from_pretrained(bert, num_labels=2)
    config = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], layers_to_transform=[2, 3])
    get_peft_model(model, config).save_pretrained(str(folder / "mine"))
    saved = folder / "mine" / "adapter_config.json"
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "base_model_name_or_path": base}))
    return Path(shutil.make_archive(str(folder / "mine"), "zip", folder, "mine")).read_bytes()


def test_an_uploaded_adapter_is_imported(tiny_home: Home, tiny_bert: Path, tmp_path: Path) -> None:
    uploads = Uploads(tiny_home, 100 << 20)
    with uploads.receiving(UploadKind.ADAPTER, "mine.zip") as incoming:
        incoming.write(zipped_adapter(tiny_bert, tmp_path, "somebody/tiny-model"))
        adapter = incoming.keep(CHECKS[UploadKind.ADAPTER]).id
    store = JobStore.open(tiny_home)
    admission = Admission(Registry.open(tiny_home), store, uploads)
    wanted = {"kind": "hplm.import", "id": "new/imported", "adapter": adapter, "domain": "farm@1", "labels": ["a", "b"]}
    job, _ = admission.submit(stored_request(wanted), None)
    assert (job.needs, job.uploads) == (("domain:tiny/farm",), (adapter,))
    assert store.claim(job.id) is not None
    assert run_attempt(tiny_home, job.id, 1, map_here) == 0
    assert store.job(job.id).failure is None
    entry = Registry.open(tiny_home).hplm("new/imported")
    assert (entry.labels, entry.domain.label, entry.pinned) == (("a", "b"), "farm@1", entry.domain)
    with pytest.raises(ConflictError, match="'new/imported' exists already"):
        admission.submit(stored_request(wanted), None)
    assert admission.submit(stored_request({**wanted, "replace": True}), None)[1]


def test_a_folder_that_an_uploaded_adapter_names_is_not_read(
    tiny_home: Home, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies on this machine, and the tenant may not learn what is in it."""
    monkeypatch.setattr(base, "weights_checksum", lambda folder: pytest.fail(f"{folder} is read"))
    uploads = Uploads(tiny_home, 100 << 20)
    with uploads.receiving(UploadKind.ADAPTER, "mine.zip") as incoming:
        incoming.write(zipped_adapter(tiny_bert, tmp_path, str(tiny_bert)))
        adapter = incoming.keep(CHECKS[UploadKind.ADAPTER]).id
    store = JobStore.open(tiny_home)
    wanted = {"kind": "hplm.import", "id": "new/one", "adapter": adapter, "domain": "farm", "labels": ["a", "b"]}
    job, _ = Admission(Registry.open(tiny_home), store, uploads).submit(stored_request(wanted), None)
    assert store.claim(job.id) is not None
    assert run_attempt(tiny_home, job.id, 1, map_here) == 0
    failure = store.job(job.id).failure
    assert failure is not None and "made for another root" in failure.message
