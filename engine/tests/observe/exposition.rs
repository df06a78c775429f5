//! A strict reader of Prometheus text, version 0.0.4, after the format's description: it refuses
//! what Prometheus would, and what `promtool check metrics` would warn of in names of our own.

use std::collections::{BTreeMap, BTreeSet};

/// A sample's labels, sorted by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// Every sample by its name and labels.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    samples: BTreeMap<(String, Labels), f64>,
}

/// A family while its samples are read.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
}

impl Exposition {
    /// Reads the text.
    ///
    /// Panics: it is not as the format has it; the message says which line.
    pub(crate) fn read(text: &str) -> Exposition {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut seen = BTreeSet::new();
        let mut family = Family::default();
        let mut helped = String::new();
        let mut read = Exposition::default();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').expect(line);
                assert!(!words.is_empty(), "no help: {line}");
                name.clone_into(&mut helped);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect(line);
                assert_eq!(name, helped, "TYPE does not follow its HELP: {line}");
                assert!(seen.insert(name.to_owned()), "announced twice: {line}");
                check_name(name, kind);
                family = Family { name: name.to_owned(), kind: kind.to_owned() };
            } else {
                read.sample(&family, line);
            }
        }
        read.check_histograms();
        read
    }

    /// The value of a sample.
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }

    /// The sum of all samples of this name.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.samples.iter().filter(|((of, _), _)| of == name).map(|(_, value)| value).sum()
    }

    fn sample(&mut self, family: &Family, line: &str) {
        let name_end = line.find(['{', ' ']).expect(line);
        let (name, rest) = line.split_at(name_end);
        let suffixes: &[&str] =
            if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        let suffix = name.strip_prefix(&family.name).expect(line);
        assert!(suffixes.contains(&suffix), "{line} is not of {} {}", family.kind, family.name);
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest),
            None => (Labels::new(), rest),
        };
        let value = value.strip_prefix(' ').expect(line);
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(family.kind == "gauge" || value >= 0.0, "a count below zero: {line}");
        let known = self.samples.insert((name.to_owned(), labels), value);
        assert!(known.is_none(), "said twice: {line}");
    }

    fn check_histograms(&self) {
        let mut buckets: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), &count) in &self.samples {
            let Some(family) = name.strip_suffix("_bucket") else { continue };
            let mut labels = labels.clone();
            let bound = labels.remove("le").expect("a bucket has a bound").replace("+Inf", "inf");
            buckets.entry((family.to_owned(), labels)).or_default().push((bound.parse().unwrap(), count));
        }
        for ((family, labels), mut buckets) in buckets {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            let rises = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
            assert!(rises, "{family} {labels:?} does not rise: {buckets:?}");
            let (last, all) = buckets[buckets.len() - 1];
            let count = self.samples.get(&(format!("{family}_count"), labels.clone()));
            assert!(last.is_infinite() && count == Some(&all), "{family} {labels:?}: {count:?} and {all}");
            assert!(self.samples.contains_key(&(format!("{family}_sum"), labels)), "{family} has no sum");
        }
    }
}

/// Names of our own say what they count and in which unit, Triton's are as Triton has them.
fn check_name(name: &str, kind: &str) {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    assert!(name.chars().all(letters) && name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
    assert!(["counter", "gauge", "histogram"].contains(&kind), "{name} is a {kind}");
    if name.starts_with("symphony_") {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        let other = ["_ms", "_us", "_ns", "_milliseconds", "_microseconds", "_kb", "_mb"];
        assert!(!other.iter().any(|unit| name.ends_with(unit)), "{name} is not in a base unit");
        assert!(!["_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end)), "{name}");
    } else {
        assert!(name.starts_with("nv_"), "{name}");
    }
}

fn read_labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label has a value");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect("a label's value ends") {
                (at, '"') => break at + 1,
                (_, '\\') => match characters.next().expect("something is escaped").1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("\\{c} is no escape"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "label {name} is there twice");
        match after[end..].split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return (labels, more),
            (other, _) => panic!("{other} after label {name}"),
        }
    }
}
