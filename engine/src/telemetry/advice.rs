//! The number of GPUs that the present load needs: advice for autoscalers and operators.

/// The bad rate up to which a load is served. docs/design/specification.md, "Quantities": goodput.
const BAD_RATE_SERVED: f64 = 0.01;

/// The busy share of GPUs at the highest load that is served: `simulate --goodput` finds 0.90 for 8
/// GPUs and one model, and more for more GPUs.
const BUSY_AT_GOODPUT: f64 = 0.9;

/// The load of the last seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RecentLoad {
    /// The number of GPUs.
    pub(super) gpus: usize,
    /// The mean number of busy GPUs.
    pub(super) busy: f64,
    /// The share of bad requests among all that were offered, 0 to 1.
    pub(super) bad_rate: f64,
}

/// Returns the number of GPUs that would serve the load. Symphony, section 4.4, has the autoscaler
/// ask for N r / (1 - r) more where the bad rate r is too high, and otherwise give the idle ones
/// back. Here enough stay that the busy share of the rest is that at goodput, since a load that
/// comes at random times can't keep them busier.
pub(super) fn advised_gpus(load: &RecentLoad) -> usize {
    let gpus = load.gpus as f64;
    if load.bad_rate > BAD_RATE_SERVED {
        // A rate of 1 would ask for infinitely many.
        let rate = load.bad_rate.min(0.99);
        return load.gpus + (gpus * rate / (1.0 - rate)).ceil() as usize;
    }
    let needed = (load.busy / BUSY_AT_GOODPUT).ceil().max(1.0);
    needed.min(gpus) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_ask_for_gpus_in_proportion() {
        assert_eq!(advised_gpus(&RecentLoad { gpus: 8, busy: 8.0, bad_rate: 0.2 }), 10);
        assert_eq!(advised_gpus(&RecentLoad { gpus: 8, busy: 8.0, bad_rate: 1.0 }), 800);
        assert_eq!(advised_gpus(&RecentLoad { gpus: 8, busy: 7.9, bad_rate: 0.011 }), 9);
    }

    #[test]
    fn idle_gpus_are_given_back_but_for_what_chance_needs() {
        assert_eq!(advised_gpus(&RecentLoad { gpus: 24, busy: 13.5, bad_rate: 0.0 }), 15);
        assert_eq!(advised_gpus(&RecentLoad { gpus: 8, busy: 7.9, bad_rate: 0.01 }), 8);
        assert_eq!(advised_gpus(&RecentLoad { gpus: 8, busy: 0.0, bad_rate: 0.0 }), 1);
    }
}
