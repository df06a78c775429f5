//! The counters of the engine's pinned threads, as Prometheus text. The names are listed in
//! docs/metrics.md.

use super::exposition::{Exposition, MetricKind};
use crate::runtime::counters::frontends::FrontendTotals;
use crate::runtime::counters::tuning::TuningTally;
use crate::runtime::counters::{
    BackendTally, CountersSnapshot, DutyCycles, LATENESS_BUCKETS, Lateness, ModelTally, RankTally,
};
use crate::runtime::rank_role;
use symphony_transport::Nanos;

/// A family of one number per thread: its name, its help, and its value in a tally.
type TallyFamily<T> = (&'static str, &'static str, fn(&T) -> u64);

const OF_MODELS: [TallyFamily<ModelTally>; 13] = [
    ("requests_total", "Requests taken from the frontends.", |tally| tally.requests),
    ("settled_total", "Times that a model was re-selected since requests had come.", |tally| tally.settled),
    ("batches_total", "Batches sent to backends.", |tally| tally.batches),
    ("batched_requests_total", "Requests in those batches.", |tally| tally.batched_requests),
    ("dropped_in_queue_total", "Requests that no good batch could serve in time.", |tally| {
        tally.dropped_in_queue
    }),
    ("overloaded_total", "Requests that met a full queue.", |tally| tally.overloaded),
    ("withdrawn_total", "Requests that their clients took back.", |tally| tally.withdrawn),
    ("stopped_total", "Requests ended by the engine's stop.", |tally| tally.stopped),
    ("grants_total", "GPUs granted.", |tally| tally.grants),
    ("grants_unused_total", "Granted GPUs given back without a batch.", |tally| tally.grants_unused),
    ("timers_total", "Timers that came due.", |tally| tally.timers),
    ("request_ring_high", "The most requests seen waiting in a ring from a frontend.", |tally| {
        tally.request_ring_high
    }),
    ("grant_ring_high", "The most grants seen waiting in a ring from a RankThread.", |tally| {
        tally.grant_ring_high
    }),
];

const OF_RANKS: [TallyFamily<RankTally>; 9] = [
    ("words_total", "Messages received from ModelThreads.", |tally| tally.messages),
    ("grants_total", "GPUs granted.", |tally| tally.grants),
    ("completions_total", "Batches that left their GPUs.", |tally| tally.completions),
    ("lost_completions_total", "Completions that did not come, and were made up for.", |tally| {
        tally.lost_completions
    }),
    ("doubled_completions_total", "Completions that came a second time, and were ignored.", |tally| {
        tally.doubled_completions
    }),
    ("timers_total", "Times that a GPU was about to be free for a batch that waited.", |tally| tally.timers),
    ("gpus_busy", "GPUs granted or running a batch.", |tally| tally.gpus_busy),
    ("word_ring_high", "The most messages seen waiting in a ring from a ModelThread.", |tally| {
        tally.message_ring_high
    }),
    ("completion_ring_high", "The most completions seen waiting in a ring from a backend.", |tally| {
        tally.completion_ring_high
    }),
];

const OF_BACKENDS: [TallyFamily<BackendTally>; 4] = [
    ("batches_total", "Batches run.", |tally| tally.batches),
    ("cancelled_batches_total", "Batches that could not start in time.", |tally| tally.cancelled),
    ("hung_total", "Times that the executor's thread was given up.", |tally| tally.hung),
    ("model_bytes", "Memory that the executor's models take, as far as it is known.", |tally| {
        tally.model_bytes
    }),
];

/// A lateness of backends: its name, its help, and its histogram in a tally.
type LatenessFamily = (&'static str, &'static str, fn(&BackendTally) -> &Lateness);

const LATENESSES: [LatenessFamily; 2] = [
    ("start_lateness_seconds", "How long after exec_at batches started.", |tally| &tally.start),
    ("finish_lateness_seconds", "How long after exec_at + l(b) batches finished.", |tally| &tally.finish),
];

/// Adds the engine's counters to `text`.
pub(super) fn write(text: &mut Exposition, counters: &CountersSnapshot) {
    let models: Vec<_> =
        counters.models.iter().enumerate().map(|(at, t)| (format!("model-{at}"), t)).collect();
    let ranks: Vec<_> = counters.ranks.iter().enumerate().map(|(at, t)| (rank_role(at), t)).collect();
    let backends: Vec<_> = counters.backends.iter().map(|(role, tally)| (role.clone(), tally)).collect();
    families(text, "symphony_model_thread_", &OF_MODELS, &models);
    families(text, "symphony_rank_thread_", &OF_RANKS, &ranks);
    families(text, "symphony_backend_", &OF_BACKENDS, &backends);
    latenesses(text, &backends);
    let cycles = models.iter().map(|(role, tally)| (role, tally.cycles));
    let cycles = cycles.chain(ranks.iter().map(|(role, tally)| (role, tally.cycles)));
    let cycles: Vec<_> = cycles.chain(backends.iter().map(|(role, tally)| (role, tally.cycles))).collect();
    cycle_families(text, &cycles);
}

/// Adds the irregular ends of all frontends to `text`.
pub(super) fn frontends(text: &mut Exposition, totals: FrontendTotals) {
    let FrontendTotals { abandoned, discarded, stale, held_slots, lost_slots } = totals;
    for (name, kind, help, value) in [
        (
            "symphony_requests_abandoned_total",
            MetricKind::Counter,
            "Requests answered before the engine ended them: at their deadline plus the grace, or by a fault.",
            abandoned,
        ),
        (
            "symphony_late_answers_discarded_total",
            MetricKind::Counter,
            "Abandoned requests that the engine ended later.",
            discarded,
        ),
        (
            "symphony_stale_answers_total",
            MetricKind::Counter,
            "Answers for no request in flight, which were ignored.",
            stale,
        ),
        (
            "symphony_slots_held",
            MetricKind::Gauge,
            "Slots of abandoned requests that the engine still holds.",
            held_slots,
        ),
        (
            "symphony_slots_lost_total",
            MetricKind::Counter,
            "Slots that were still in use after their request's end.",
            lost_slots,
        ),
    ] {
        text.family(name, kind, help);
        text.sample(&[], value);
    }
}

/// Adds the counters of the tuner's thread to `text`.
pub(super) fn tuning(text: &mut Exposition, TuningTally { looks, changes, busy_ns }: TuningTally) {
    for (name, help, value) in [
        ("symphony_tuning_looks_total", "Times that recent requests were replayed.", looks as f64),
        ("symphony_tuning_changes_total", "Changes of the default rule's setting.", changes as f64),
        ("symphony_tuning_seconds_total", "Processor time that replays took.", busy_ns as f64 / 1e9),
    ] {
        text.family(name, MetricKind::Counter, help);
        text.sample(&[], value);
    }
}

fn families<T>(text: &mut Exposition, prefix: &str, families: &[TallyFamily<T>], threads: &[(String, &T)]) {
    for (name, help, value) in families {
        let kind = if name.ends_with("_total") { MetricKind::Counter } else { MetricKind::Gauge };
        text.family(&format!("{prefix}{name}"), kind, help);
        for (role, tally) in threads {
            text.sample(&[("thread", role)], value(tally));
        }
    }
}

fn latenesses(text: &mut Exposition, backends: &[(String, &BackendTally)]) {
    for (name, help, of) in LATENESSES {
        text.family(&format!("symphony_backend_{name}"), MetricKind::Histogram, help);
        for (role, tally) in backends {
            lateness(text, role, of(tally));
        }
    }
}

fn lateness(text: &mut Exposition, role: &str, lateness: &Lateness) {
    let mut below = 0;
    let bounded = lateness.buckets[..LATENESS_BUCKETS - 1].iter().enumerate();
    let up_to = bounded.map(|(at, count)| {
        below += count;
        (Lateness::bound(at).as_secs_f64(), below)
    });
    text.buckets(&[("thread", role)], up_to, lateness.total(), Nanos(lateness.sum_ns).as_secs_f64());
}

fn cycle_families(text: &mut Exposition, cycles: &[(&String, DutyCycles)]) {
    text.family("symphony_thread_turns_total", MetricKind::Counter, "Duty cycles of a pinned thread's loop.");
    for (role, cycles) in cycles {
        text.sample(&[("thread", role)], cycles.all);
    }
    text.family("symphony_thread_busy_turns_total", MetricKind::Counter, "Duty cycles that found work.");
    for (role, cycles) in cycles {
        text.sample(&[("thread", role)], cycles.busy);
    }
    let help = "The longest duty cycle that found work.";
    text.family("symphony_thread_longest_turn_seconds", MetricKind::Gauge, help);
    for (role, cycles) in cycles {
        text.sample(&[("thread", role)], Nanos(cycles.longest_ns).as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_sample_of_a_family_that_was_announced() {
        let mut tally = BackendTally::default();
        tally.start.count(Nanos(300));
        tally.start.count(Nanos(5_000_000));
        let counters = CountersSnapshot {
            models: vec![ModelTally { requests: 7, ..ModelTally::default() }; 2],
            ranks: vec![RankTally::default(), RankTally { grants: 9, ..RankTally::default() }],
            backends: vec![("emulated".to_owned(), tally)],
        };
        let mut text = Exposition::default();
        write(&mut text, &counters);
        let text = text.finish();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with("# HELP ") {
                assert!(line.starts_with(family), "{line} is not of {family}");
                assert!(line.split(' ').next_back().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.contains("symphony_model_thread_requests_total{thread=\"model-1\"} 7\n"));
        assert!(text.contains("symphony_rank_thread_grants_total{thread=\"rank\"} 0\n"));
        assert!(text.contains("symphony_rank_thread_grants_total{thread=\"rank-1\"} 9\n"));
        let bucket = "symphony_backend_start_lateness_seconds_bucket{thread=\"emulated\",le=";
        assert!(text.contains(&format!("{bucket}\"0.000000256\"}} 0\n")));
        assert!(text.contains(&format!("{bucket}\"0.000000512\"}} 1\n")));
        assert!(text.contains(&format!("{bucket}\"+Inf\"}} 2\n")));
    }
}
