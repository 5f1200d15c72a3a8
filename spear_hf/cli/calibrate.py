"""spear-hf calibrate: a configuration from clean images; and how other commands take its file."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spear_hf.cli.app import AsJson, Images, ModelName, print_json, print_table
from spear_hf.cli.expand import expanded
from spear_hf.cli.image_options import ImageOptions
from spear_hf.cli.options import WeightOptions
from spear_hf.config import SpearConfig
from spear_hf.evaluation.calibration import LEAST, TRIED_ON

if TYPE_CHECKING:
    from spear_hf.evaluation.calibration.calibration import Calibration
    from spear_hf.guard.policy import GuardPolicy

CLEAN = ImageOptions(shuffle=True, label_column="none")
NOT_ASKED = ("corruptions", "severity", "preset", "protocol", "shuffle", "limit", "label_column", "class_names")
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A JSON file of `spear-hf calibrate`, or a SpearConfig; options beside it win."),
]


@expanded(without=(*NOT_ASKED, "streaming"))
def calibrate(
    model: ModelName,
    dataset: Images,
    weights: WeightOptions,
    images: ImageOptions = CLEAN,
    output: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("calibration.json"),
    limit: Annotated[int, typer.Option(help="Clean images to take, in a seeded order.", min=LEAST)] = 256,
    corruptions: Annotated[
        str, typer.Option(help='What values are tried on: names or groups with commas, "all"; name what you expect.')
    ] = ",".join(TRIED_ON),
    severity: Annotated[float, typer.Option(help="Of these, in (0, 5].")] = 5.0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")] = False,
    as_json: AsJson = False,
) -> None:
    """Choose a configuration from clean images, and check the preprocessing.

    Optional: adapt needs no clean images. A few hundred, without labels, say three things:

    Is the mean and std right that the images are prepared with? The batch norms of the model remember what they were
    trained on.

    Does another alpha, tau or learning rate than the default help this model? The images are corrupted, and the answers
    to them set against what the model says to the clean ones; the default stays unless a value is better beyond chance
    and costs no clean answer.

    What does adapting look like where it goes well? That gives the bounds of --guard.

    Give the --batch-size that you will adapt with. Nothing is changed but the file that is written.

    Example: spear-hf calibrate microsoft/resnet-50 clean-photos/

      And then:
      spear-hf adapt microsoft/resnet-50 photos/ --config calibration.json --guard
    """
    from spear_hf.errors import ConfigError
    from spear_hf.evaluation.calibration.calibration import Calibration
    from spear_hf.utils.files import check_output_file
    from spear_hf.utils.launch import start_accelerator

    check_output_file(output)  # before minutes of work
    accelerator = start_accelerator(cpu=cpu)
    if accelerator.num_processes > 1:
        raise ConfigError(f"{accelerator.num_processes} processes were started; calibrate runs in one: start it alone")
    base = weights.load(model)
    stream = images.stream(dataset, base)
    base.to(accelerator.device)
    found = Calibration.of(base, stream, corruptions=corruptions, severity=severity, limit=limit, seed=images.seed)
    found.save(output)
    if as_json:
        print_json(found.to_dict() | {"output": str(output)})
    else:
        _show(found, f"{Path(model).name}, {found.images} clean images, batch {found.batch_size}", output)


def configured(context: Any, config: SpearConfig, path: Path | None) -> "tuple[SpearConfig, GuardPolicy | None]":
    """The configuration and the policy of a file; options on the command line go before it.

    >>> configured(None, SpearConfig(alpha=0.75), None)[0].alpha
    0.75

    Args:
        context: of click, which knows what the user gave.
        config: what the options say, given or not.
        path: of the file; None changes nothing.

    Raises:
        ConfigError: a file that cannot be read or holds something else.
    """
    if path is None:
        return config, None
    from spear_hf.evaluation.calibration.calibration import read_config

    found, policy = read_config(path)
    sources = {field.name: context.get_parameter_source(field.name) for field in fields(config)}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return replace(found, **{name: getattr(config, name) for name in given}), policy


def _show(found: "Calibration", title: str, output: Path) -> None:
    """Print what was tried and what was chosen."""
    from rich.table import Table

    table = Table(title=title, caption="% of answers that are not the source's to the same image, clean")
    for column in ("tried", "clean", "corrupted", "entropy"):
        table.add_column(column, justify="left" if column == "tried" else "right")
    table.add_column("")
    for row in found.tried:
        numbers = (f"{row.clean:.2f}", f"{row.corrupted:.2f}", f"{row.entropy:.3f}")
        table.add_row(row.name, *numbers, "chosen" if row.chosen else row.why)
    print_table(table)
    chosen = ", ".join(row.name for row in found.tried if row.chosen) or "the default; nothing was surely better"
    if found.warning is not None:
        chosen = "the default; nothing else is tried while preprocessing looks wrong"
    mean, most = found.entropy
    print(f"config    {chosen}")
    print(f"source    entropy {mean:.3f} on clean images; nine of ten batches are below {most:.3f}")
    print(f"guard     max_entropy_rise {found.policy.max_entropy_rise:g}, max_collapse {found.policy.max_collapse:g}")
    print(
        f"images    {'preprocessing looks right' if found.warning is None else 'see the warning about preprocessing'}"
    )
    print(f"saved     {output}: spear-hf adapt ... --config {output}")
