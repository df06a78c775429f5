//! A run's latencies in HdrHistogram's own formats: the log of interval histograms (`.hlog`), which
//! its log processors and analysers read, and the table of percentiles (`.hgrm`), which its
//! plotters read.

use super::Report;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use std::io::{self, Write};
use std::time::Duration;

/// Lines of the table for each halving of the distance to 100 %, as HdrHistogram's own tools have
/// it.
const TICKS_PER_HALF: u32 = 5;

/// Nanoseconds in the unit that is shown, a millisecond.
const UNIT: f64 = 1e6;

impl Report {
    /// Writes a compressed histogram of each second's latencies (nanoseconds, exact to 1 %).
    ///
    /// Errors: those of `out`.
    pub fn write_hlog(&self, mut out: &mut dyn Write) -> io::Result<()> {
        let mut serializer = V2DeflateSerializer::new();
        let began = self.began + Duration::from(self.tally.from);
        let mut builder = IntervalLogWriterBuilder::new();
        builder
            .add_comment("loadgen: from the intended send time to the answer, of good and late requests, ns");
        builder.with_start_time(began).with_base_time(began).with_max_value_divisor(UNIT);
        let mut log = builder.begin_log_with(&mut out, &mut serializer)?;
        for (at, second) in (0..).zip(self.tally.seconds.iter()) {
            let (start, length) = (Duration::from_secs(at), Duration::from_secs(1));
            log.write_histogram(&second.latency, start, length, None).map_err(io_error)?;
        }
        Ok(())
    }

    /// Writes the table of percentiles of all latencies, in milliseconds.
    ///
    /// Errors: those of `out`.
    pub fn write_hgrm(&self, out: &mut dyn Write) -> io::Result<()> {
        let latency = &self.tally.latency;
        writeln!(
            out,
            "{:>12} {:>14} {:>10} {:>14}\n",
            "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
        )?;
        let mut total = 0;
        for step in latency.iter_quantiles(TICKS_PER_HALF) {
            total += step.count_since_last_iteration();
            let value = step.value_iterated_to() as f64 / UNIT;
            let quantile = step.quantile_iterated_to();
            match 1.0 / (1.0 - quantile) {
                part if part.is_finite() => {
                    writeln!(out, "{value:12.3} {quantile:14.12} {total:10} {part:14.2}")?;
                }
                _ => writeln!(out, "{value:12.3} {quantile:14.12} {total:10}")?,
            }
        }
        let (mean, deviation) = (latency.mean() / UNIT, latency.stdev() / UNIT);
        writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
        let (max, count) = (latency.max() as f64 / UNIT, latency.len());
        writeln!(out, "#[Max     = {max:12.3}, Total count    = {count:12}]")?;
        writeln!(out, "#[Buckets = {:12}, SubBuckets     = {:12}]", latency.buckets(), 2_048)
    }
}

fn io_error(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn the_log_has_a_histogram_a_second_that_can_be_read_again() {
        let (plan, tally) = recorded();
        let mut log = Vec::new();
        report(&plan, tally).write_hlog(&mut log).unwrap();
        let entries = IntervalLogIterator::new(&log).map(|entry| entry.unwrap());
        let intervals = entries.filter_map(|entry| match entry {
            LogEntry::Interval(interval) => Some((interval.start_timestamp().as_secs(), interval.max())),
            _ => None,
        });
        let intervals: Vec<(u64, f64)> = intervals.collect();
        assert_eq!((intervals.len(), intervals[3].0), (10, 3));
        assert!((intervals[5].1 - 200.0).abs() < 2.0 && intervals[8].1 == 0.0, "{intervals:?}");
    }

    #[test]
    fn the_table_of_percentiles_ends_with_the_largest() {
        let (plan, tally) = recorded();
        let mut table = Vec::new();
        report(&plan, tally).write_hgrm(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let mut values = table.lines().filter(|line| line.starts_with(' ') && line.contains("0."));
        assert!(values.all(|line| line.split_whitespace().count() >= 3), "{table}");
        let last = table.lines().rfind(|line| line.contains(" 1.000000000000 ")).unwrap();
        let columns: Vec<&str> = last.split_whitespace().collect();
        assert!(columns[0].starts_with("200.") || columns[0].starts_with("199."), "{last}");
        assert_eq!(columns[2], "6");
        assert!(table.contains("#[Mean    ="));
    }
}
