//! The rules by which requests are given up when not all of them can be in time. Chosen by a policy
//! or by the user; [`crate::model::selection`] carries it out.

/// What becomes of requests that stand in the way of a good batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropRule {
    /// Requests are dropped when a batch of the target size could not include them in time.
    Window,
    /// Only a request that can't even run alone is dropped; the head is served whatever it costs
    /// (Clipper's).
    Timeout,
    /// Nothing is dropped; late is late.
    Fcfs,
    /// The window, but requests are only dropped where at least as many more join the batch for it,
    /// or, for the only GPU of a pool, where at least as many fewer are dropped for the model's
    /// next batch, if that comes next; while the model is overloaded, the window, and the model has
    /// precedence over others.
    Exchange,
}

impl DropRule {
    /// Every rule with its name and what it does, for help texts.
    pub const ALL: [(DropRule, &str, &str); 4] = [
        (DropRule::Window, "window", "drop what keeps a batch of the target size from forming"),
        (DropRule::Timeout, "timeout", "drop only what can't finish in time even alone"),
        (DropRule::Fcfs, "fcfs", "drop nothing; late requests run late"),
        (DropRule::Exchange, "exchange", "as window, where at least as many more can join for those dropped"),
    ];

    /// The rule of this name.
    pub fn parse(name: &str) -> Option<DropRule> {
        DropRule::ALL.iter().find(|rule| rule.1 == name).map(|rule| rule.0)
    }

    /// The rule that stands in for this one while a model is overloaded. To spare requests is then
    /// in vain: others are lost for them, and batches shrink.
    pub fn while_overloaded(self, overloaded: bool) -> DropRule {
        match self {
            DropRule::Exchange if overloaded => DropRule::Window,
            rule => rule,
        }
    }

    /// True if a model that is overloaded has precedence over others: the classic rules leave
    /// the order of batches to their deadlines.
    pub fn gives_precedence(self) -> bool {
        self == DropRule::Exchange
    }

    /// The rule's name.
    pub fn name(self) -> &'static str {
        DropRule::ALL[self as usize].1
    }
}
