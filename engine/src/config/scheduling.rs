//! The keys `policy`, `when`, `drop`, `tuning`, `prefer` and `learned_profiles` of CONFIG: the
//! scheduling policy, its options, and what it learnt.

use super::engine::Config;
use super::repository::{RepositoryConfig, RepositoryControl};
use super::toml_reader::TomlTable;
use std::path::PathBuf;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::when::{self, When};
use symphony_scheduler::policy::{self, Policy};
use symphony_scheduler::rule_setting::Prefer;

/// Reads the policy: one that the pinned threads run.
pub(super) fn read_policy(root: &TomlTable<'_>) -> Option<&'static dyn Policy> {
    let Some(value) = root.optional("policy") else { return Some(policy::POLICIES[0]) };
    let served = policy::served();
    let named = value.is_text().then(|| value.text("a policy")).flatten().and_then(policy::by_name);
    if let Some(simulated) = named.filter(|policy| policy.preempts()) {
        let right = format!("serve with one of {}", served.join(", "));
        value.report(format!("\"{}\" runs in `simulate` only", simulated.name()), right);
        return None;
    }
    policy::by_name(value.word(&served)?)
}

/// Checks that a policy that schedules as a whole is not asked for what only ModelThreads do.
pub(super) fn check_whole_policy(root: &TomlTable<'_>, config: &Config) {
    let Some(policy) = config.whole_policy() else { return };
    let name = policy.name();
    let changes = |of: &RepositoryConfig| of.control != RepositoryControl::None;
    let refused = [
        (
            root.has("drop") && !policy.options().contains(&"drop"),
            "has a drop rule of its own",
            "take `drop` out",
        ),
        (
            config.cores.model_threads.is_some_and(|threads| threads > 1) || config.cores.rank_threads > 1,
            "has one thread for all models",
            "take the numbers of threads out of [cores]",
        ),
        (!config.hosts.is_empty(), "runs in one process", "take [[hosts]] out"),
        (
            config.repository.as_ref().is_some_and(changes),
            "knows the models that it starts with only",
            "set control = \"none\" in [repository]",
        ),
    ];
    for (_, wrong, right) in refused.into_iter().filter(|(is_asked, ..)| *is_asked) {
        let right = format!("{right}, or serve with one of {}", policy::deferring().join(", "));
        root.report("policy", format!("\"{name}\" {wrong}"), right);
    }
}

/// Reads the rule `drop`; `Some(None)` leaves the policy's own.
pub(super) fn read_drop(root: &TomlTable<'_>) -> Option<Option<DropRule>> {
    let rules = DropRule::ALL.map(|(_, name, _)| name);
    root.optional("drop").map_or(Some(None), |value| value.word(&rules).map(DropRule::parse))
}

/// Reads the rule `when`; a policy with a rule of its own takes none.
pub(super) fn read_when(root: &TomlTable<'_>, policy: Option<&dyn Policy>) -> Option<Option<&'static When>> {
    let Some(value) = root.optional("when") else { return Some(None) };
    let rule = when::by_name(value.word(&when::names())?)?;
    let policy = policy?;
    if !policy.options().contains(&"when") {
        let right = format!("take it out, or set policy = \"{}\"", policy::taking("when").join("\" or \""));
        value.report(format!("policy \"{}\" has a rule of its own", policy.name()), right);
        return None;
    }
    Some(Some(rule))
}

/// Reads whether the default rule is tuned while it serves, and what is preferred then.
pub(super) fn read_tuning(
    root: &TomlTable<'_>,
    policy: Option<&dyn Policy>,
    drop: Option<DropRule>,
) -> Option<Option<Prefer>> {
    let (tuning, prefer) = (root.optional("tuning"), root.optional("prefer"));
    let can_be = policy?.is_tuned(drop);
    let is_on = match &tuning {
        Some(value) => value.word(&["on", "off"])? == "on",
        None => can_be,
    };
    let preferred = match &prefer {
        None => Prefer::default(),
        Some(value) => Prefer::parse(value.word(&Prefer::ALL.map(|(_, name)| name))?)?,
    };
    if let (Some(value), false) = (&prefer, is_on) {
        value.report(
            "it chooses among what tuning finds, and nothing is tuned here",
            "take it out, or tuning = \"off\", or another policy, or drop = \"fcfs\"",
        );
        return None;
    }
    if let (Some(value), true, false) = (&tuning, is_on, can_be) {
        let policies = policy::taking("tuning").join("\" or \"");
        let right =
            format!("take it out, or set policy = \"{policies}\" and another rule than drop = \"fcfs\"");
        value.report("there is nothing to tune in this policy, or with drop = \"fcfs\"", right);
        return None;
    }
    Some(is_on.then_some(preferred))
}

/// Reads the file in which rolling profiles stay over a restart.
pub(super) fn read_learned_profiles(root: &TomlTable<'_>) -> Option<Option<PathBuf>> {
    let Some(value) = root.optional("learned_profiles") else { return Some(None) };
    Some(Some(root.folder().join(value.name("the file of learned profiles")?)))
}
