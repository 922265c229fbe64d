"""`rlsched top`: the whole cluster on one screen, live on a terminal."""

from __future__ import annotations

import click

from rlsched.cli.shared.options import BrokerAt, asking, json_option, shown
from rlsched.terminal.show import print_json


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="Print the screen once as plain text, and exit. [default if standard output is not a terminal]",
)
@json_option("Print the data of the screen once as JSON, and exit.")
@shown(
    "--every",
    "every_s",
    default=2.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0.2, max=3600.0),
    help="Refresh interval, seconds; a broker that answers slowly is queried less often.",
)
@asking
def top(once: bool, as_json: bool, every_s: float, at: BrokerAt) -> None:
    """Show the state of the cluster on one screen: nodes, users, running jobs, the queue, energy.

    On a terminal, the screen refreshes until q is pressed. Arrow keys select a job; w shows why the selected
    job waits or runs, l shows its output, c cancels the job after a confirmation.

    \b
    Example:
      rlsched top
      rlsched top --once
      rlsched top --json | jq '.queue[0]'
    """
    from rlsched.cli.shared.screen.terminal import is_screen
    from rlsched.cli.users.overview.picture import picture

    with at.reach() as client:
        now = picture(
            client
        )  # queried before a live screen opens too, so that an error at the start is printed as one line
    if as_json:
        print_json(now.as_data())
    elif once or not is_screen():
        from rlsched.cli.users.overview.bars import Marks
        from rlsched.cli.users.overview.overview_lines import overview
        from rlsched.terminal.show import console

        out = console()
        for line in overview(now, out.width, None, now.at_s, Marks()):
            out.print(line, soft_wrap=True)
    else:
        from rlsched.cli.shared.screen.live import live
        from rlsched.cli.users.overview.view import Overview

        live(Overview(), at.reach, every_s)
