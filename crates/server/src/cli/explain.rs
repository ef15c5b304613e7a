//! `orchestrix explain`: explains the state of a task.

use orchestrix_core::TaskId;

use super::fail::Fail;
use super::out::{Style, clean};
use super::tasks::state_style;
use super::{Context, parse_id};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix explain 42
  orchestrix explain 42 --json | jq -r .code")]
pub(crate) struct ExplainArgs {
    /// The task
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: TaskId,
}

pub(crate) async fn run(args: &ExplainArgs, context: &Context) -> Result<(), Fail> {
    let out = context.out;
    let explanation = context.client.explain(args.id).await?;
    if out.is_json() {
        return out.json(&explanation);
    }
    let state = out.paint(state_style(explanation.state), explanation.state.as_str());
    let code = out.paint(Style::Bold, &clean(&explanation.code));
    out.line(&format!("task {} {state} {code}: {}", explanation.id, clean(&explanation.detail)))
}
