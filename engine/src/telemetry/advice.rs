//! How many GPUs the present load needs: advice for whoever adds and removes them.

/// The bad rate up to which a load is served. docs/design/specification.md, "Quantities": goodput.
const BAD_RATE_SERVED: f64 = 0.01;

/// How busy GPUs are at the highest load that is served: `simulate --goodput` finds 0.90 for 8 GPUs
/// and one model, and more for more GPUs.
const BUSY_AT_GOODPUT: f64 = 0.9;

/// What was seen of the last seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RecentLoad {
    /// GPUs that there are.
    pub(super) gpus: usize,
    /// How many of them were busy at a time, on average.
    pub(super) busy: f64,
    /// Bad requests, of all that were offered: 0 to 1.
    pub(super) bad_rate: f64,
}

/// How many GPUs would serve the load. Symphony, section 4.4, has the autoscaler ask for N r / (1 -
/// r) more where the bad rate r is too high, and else give the idle ones back. Here so many stay
/// that those that work are as busy as they are at goodput, since a load that comes at random times
/// can't keep them busier.
pub(super) fn advised_gpus(load: &RecentLoad) -> usize {
    let gpus = load.gpus as f64;
    if load.bad_rate > BAD_RATE_SERVED {
        // A rate of 1 would ask for ever more.
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
