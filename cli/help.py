"""What `--help` says about commands beside their own words: groups, and an example of each."""

from __future__ import annotations

from collections.abc import Iterator

import typer
from typer.models import CommandInfo

_PANELS = {
    "Build": ("root", "domain", "create", "update", "import", "select", "students"),
    "Serve": ("export", "serve", "fleet", "infer", "manager", "doctor"),
    "Versions": ("list", "show", "tree", "versions", "rollback", "pin", "unpin", "delete", "gc", "verify"),
    "Access": ("token", "quota", "audit"),
    "Measure": ("eval", "loadtest", "profile", "simulate", "traffic", "place"),
}
_FILES = "--train train.jsonl --dev dev.jsonl"
_EXAMPLES: dict[str, tuple[str, ...]] = {
    "create": (
        f"hplm create acme/returns --domain shop {_FILES}",
        f"hplm create acme/returns --domain shop {_FILES} --held-out held_out.jsonl --max-drop 1",
    ),
    "update": (f"hplm update acme/returns {_FILES}",),
    "list": ("hplm list --tenant acme", "hplm list --json"),
    "show": ("hplm show acme/returns",),
    "eval": ("hplm eval acme/returns test.jsonl",),
    "select": (
        "hplm select acme/returns --train train.jsonl --held-out held_out.jsonl --max-drop 1",
        "hplm select acme/returns --unlabelled texts.txt --agreement 0.98",
        "hplm select --all --unlabelled texts.txt --agreement 0.98",
        "hplm select acme/returns --show",
    ),
    "import": ("hplm import acme/returns --from adapter-folder --domain shop",),
    "versions": ("hplm versions acme/returns",),
    "rollback": ("hplm rollback acme/returns", "hplm rollback acme/returns --to 2"),
    "pin": ("hplm pin acme/returns", "hplm pin acme/returns --domain-version 2"),
    "unpin": ("hplm unpin acme/returns",),
    "delete": ("hplm delete acme/returns",),
    "gc": ("hplm gc --dry-run", "hplm gc --grace 0s"),
    "verify": ("hplm verify",),
    "tree": ("hplm tree",),
    "export": ("hplm export", "hplm export --policy das --missing learn"),
    "serve": ("hplm serve", "hplm serve --address 0.0.0.0 --metrics-address 127.0.0.1 --auth tokens"),
    "infer": (
        'hplm infer acme/returns "It arrived broken."',
        "hplm infer acme/returns --file texts.txt --out answers.jsonl",
    ),
    "doctor": ("hplm doctor",),
    "profile": ("hplm profile",),
    "simulate": ("hplm simulate --load 0.8x --deadlines 5x-20x",),
    "traffic show": ("hplm traffic show --since 24h --by family",),
    "traffic export": ("hplm traffic export monday.csv --since 2026-11-23 --until 2026-11-24",),
    "place": (
        "hplm place --traffic monday.csv --devices 4x16GB",
        "hplm place --traffic monday.csv --devices 2x16GB@alpha,2x24GB@beta --svg placement.svg",
        "hplm place --traffic monday.csv --devices 64x16GB --target 99 --no-stages",
    ),
    "manager": ("hplm manager --port 8080",),
    "root add": ("hplm root add base --from hf:google-bert/bert-base-uncased --lower 6 --corpus texts.txt",),
    "root check": ("hplm root check base --texts texts.txt",),
    "root config": ("hplm root config base",),
    "root list": ("hplm root list",),
    "root show": ("hplm root show base",),
    "root export": ("hplm root export base weights.safetensors",),
    "root delete": ("hplm root delete base",),
    "students make": (
        "hplm students make base",
        "hplm students make base --corpus texts.txt --count 2 --layers 1",
        "hplm students make base --width 192 --replace",
    ),
    "students add": (
        f"hplm students add acme/returns {_FILES}",
        f"hplm students add acme/returns {_FILES} --unlabelled texts.txt",
    ),
    "students show": ("hplm students show base",),
    "domain create": ("hplm domain create shop --corpus shop.txt",),
    "domain update": ("hplm domain update shop --corpus more.txt",),
    "domain list": ("hplm domain list",),
    "domain show": ("hplm domain show shop",),
    "domain coverage": ("hplm domain coverage shop --plot coverage.svg",),
    "domain versions": ("hplm domain versions shop",),
    "domain rollback": ("hplm domain rollback shop",),
    "domain delete": ("hplm domain delete shop",),
    "token create": (
        "hplm token create acme --expires 90d",
        "hplm token create acme/returns --not-before 2027-01-01",
        "hplm token create --role operator",
    ),
    "token rotate": ("hplm token rotate 3f9a00c1d2e4 --grace 7d",),
    "token revoke": ("hplm token revoke 3f9a00c1d2e4",),
    "token list": ("hplm token list --tenant acme",),
    "quota set": ("hplm quota set acme --rows-per-s 100 --weight 3",),
    "quota show": ("hplm quota show", "hplm quota show acme --json"),
    "quota remove": ("hplm quota remove acme", "hplm quota remove acme rows_per_s"),
    "audit": ("hplm audit --since 7d", "hplm audit --tenant acme --since 2026-12-01 --json"),
    "fleet serve": ("hplm fleet serve --servers 3", "hplm fleet serve --servers 2 --address 0.0.0.0 --auth tokens"),
    "fleet status": ("hplm fleet status", "hplm fleet status --json"),
    "fleet drain": ("hplm fleet drain server-1", "hplm fleet drain server-1 server-2 --restart"),
    "fleet apply": ("hplm fleet apply", "hplm fleet apply --placement hplm_home/profiles/placement.json"),
    "fleet config": ("hplm fleet config --hosts hosts.toml --out envoy.json",),
    "loadtest steady": ("hplm loadtest steady --duration 1m --out steady",),
    "loadtest burst": ("hplm loadtest burst --protocol http --out burst",),
    "loadtest overload": ("hplm loadtest overload --load 20/s --deadlines 500ms-2s --out calm",),
    "loadtest trace": ("hplm loadtest trace --trace monday.csv --speed 24 --out monday",),
    "loadtest compare": ("hplm loadtest compare calm busy --out both.html",),
    "loadtest report": ("hplm loadtest report calm",),
    "loadtest worker": ("hplm loadtest worker first-machine:5557",),
}


def add_help(app: typer.Typer) -> None:
    """Put every command into its group and under its example; call it once all commands are registered."""
    panel_of = {name: panel for panel, names in _PANELS.items() for name in names}
    for path, command in commands(app):
        lines = [command.epilog, *(f"Example: {line}" for line in _EXAMPLES.get(path, ()))]
        command.epilog = "\n\n".join(line for line in lines if line) or None
    for command in app.registered_commands:
        command.rich_help_panel = panel_of[_name(command)]
    for group in app.registered_groups:
        group.rich_help_panel = panel_of[str(group.name)]


def commands(app: typer.Typer, above: str = "") -> Iterator[tuple[str, CommandInfo]]:
    """All commands with their paths, such as `domain create`."""
    for command in app.registered_commands:
        yield f"{above}{_name(command)}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance, f"{above}{group.name} ")


def _name(command: CommandInfo) -> str:
    callback = command.callback
    return command.name or (callback.__name__.replace("_", "-") if callback is not None else "")
