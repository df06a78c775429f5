//! A layer over the `toml` crate that reads tables field by field and collects every diagnostic
//! with its line: wrong types, values out of range, missing fields, fields that nobody asked for.
//! The files' own readers, beside this one, say which fields there are; they go on after a
//! diagnostic, so that all come out at once.

use super::diagnostics::{Diagnostic, Diagnostics, Location};
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// A file of this many bytes or more is no file that a person wrote: a model given by diagnostic,
/// perhaps.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads the TOML file at `path`: `walk` takes what it wants from the root table. Its value counts
/// only if no diagnostic was reported, and it may be `None` only if one was.
pub(super) fn read<T>(path: &Path, walk: impl FnOnce(&TomlTable<'_>) -> Option<T>) -> Result<T, Diagnostics> {
    let text = load(path).map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
    read_text(path, &text, walk)
}

/// Reads TOML `text` as [`read`] reads the file at `path`, which diagnostics name.
pub(super) fn read_text<T>(
    path: &Path,
    text: &str,
    walk: impl FnOnce(&TomlTable<'_>) -> Option<T>,
) -> Result<T, Diagnostics> {
    let line_ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at);
    let source = TomlFile { path, text, line_ends: line_ends.collect(), diagnostics: RefCell::default() };
    let value = source.parse().and_then(|root| {
        let root = TomlTable::new(&source, root.get_ref(), String::new(), 0..0);
        let value = walk(&root);
        root.report_unknown();
        value
    });
    let mut diagnostics = source.diagnostics.into_inner();
    match value {
        Some(value) if diagnostics.is_empty() => Ok(value),
        _ => {
            debug_assert!(!diagnostics.is_empty(), "a value was left out and no diagnostic reported");
            diagnostics
                .sort_by(|a, b| (a.file != path, &a.file, a.line).cmp(&(b.file != path, &b.file, b.line)));
            Err(Diagnostics(diagnostics))
        }
    }
}

fn load(path: &Path) -> Result<String, Diagnostic> {
    let diagnostic = |line: usize, wrong: String, right: &str| Diagnostic {
        file: path.into(),
        line,
        field: "TOML".into(),
        wrong,
        right: right.into(),
    };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)).map_err(|e| {
        diagnostic(1, format!("the file can't be read ({e})"), "name a TOML file that can be")
    })?;
    if bytes.len() as u64 == MAX_FILE_BYTES {
        let wrong = format!("the file has {} MiB or more", MAX_FILE_BYTES >> 20);
        return Err(diagnostic(1, wrong, "name a TOML file (they are far smaller)"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|&&b| b == b'\n').count();
        diagnostic(line, "this is no UTF-8 text".into(), "name a TOML file (they are UTF-8)")
    })
}

/// A file's text, and the diagnostics found in it so far.
struct TomlFile<'d> {
    path: &'d Path,
    text: &'d str,
    /// Where the text has its line feeds: a file may have locations by the ten thousand.
    line_ends: Vec<usize>,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

impl<'d> TomlFile<'d> {
    fn parse(&self) -> Option<Spanned<DeTable<'d>>> {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        let mut last_line = 0;
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            // One slip makes the parser stumble several times; the first on a line is the one that
            // helps.
            let line = self.line(span.start);
            if line != last_line {
                let right = "see https://toml.io for how TOML is written";
                self.report(&span, "TOML", error.message().replace('\n', " "), right.into());
                last_line = line;
            }
        }
        errors.is_empty().then_some(root)
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.line_ends.partition_point(|&end| end < offset)
    }

    fn report(&self, span: &Range<usize>, field: &str, wrong: String, right: String) {
        let (file, line) = (self.path.to_path_buf(), self.line(span.start));
        self.diagnostics.borrow_mut().push(Diagnostic { file, line, field: field.into(), wrong, right });
    }

    /// Returns the text of the span, short enough for a message.
    fn quote(&self, span: &Range<usize>) -> String {
        const LONGEST: usize = 40;
        let text = self.text.get(span.clone()).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let mut short: String = line.chars().take(LONGEST).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        short
    }
}

/// A table of the file.
pub(super) struct TomlTable<'d> {
    source: &'d TomlFile<'d>,
    entries: &'d DeTable<'d>,
    /// The path to it, empty for the root.
    path: String,
    span: Range<usize>,
    /// The names that were asked for.
    known: RefCell<Vec<&'static str>>,
}

impl<'d> TomlTable<'d> {
    fn new(
        source: &'d TomlFile<'d>,
        entries: &'d DeTable<'d>,
        path: String,
        span: Range<usize>,
    ) -> TomlTable<'d> {
        TomlTable { source, entries, path, span, known: RefCell::default() }
    }

    /// The file's folder, which the paths in it are relative to.
    pub(super) fn folder(&self) -> &'d Path {
        self.source.path.parent().unwrap_or(Path::new(""))
    }

    /// The field `name`, if it is there.
    pub(super) fn optional(&self, name: &'static str) -> Option<TomlValue<'d>> {
        self.known.borrow_mut().push(name);
        let value = self.entries.get(name)?;
        Some(TomlValue { source: self.source, path: self.field(name), value })
    }

    /// The field `name`; a diagnostic if it is not there. `right` says what it should be: "add …".
    pub(super) fn required(&self, name: &'static str, right: impl fmt::Display) -> Option<TomlValue<'d>> {
        let value = self.optional(name);
        if value.is_none() {
            self.report(name, "is missing", format!("add {right}"));
        }
        value
    }

    /// The table `[name]` as `read` reads it, the default where there is none.
    pub(super) fn section<T: Default>(
        &self,
        name: &'static str,
        read: impl FnOnce(&TomlTable<'d>) -> Option<T>,
    ) -> Option<T> {
        self.optional(name).map_or_else(|| Some(T::default()), |value| value.table(read))
    }

    /// The tables `[[name]]`, at least `least` of them, as `read` reads each. One that has
    /// diagnostics is left out.
    pub(super) fn tables<T>(
        &self,
        name: &'static str,
        least: usize,
        mut read: impl FnMut(&TomlTable<'d>) -> Option<T>,
    ) -> Vec<T> {
        let items = match self.optional(name) {
            Some(value) => value.items(&format!("write each as a table under a line `[[{name}]]`")),
            None => Some(Vec::new()),
        };
        let Some(items) = items else { return Vec::new() };
        if items.len() < least {
            self.report(name, "is missing", format!("add at least {least} table under a line `[[{name}]]`"));
        }
        items.into_iter().filter_map(|item| item.table(&mut read)).collect()
    }

    /// True if the field `name` exists. It still has to be read to count as known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Reports a diagnostic about the field `name` (there or not) of this table.
    pub(super) fn report(&self, name: &str, wrong: impl fmt::Display, right: impl fmt::Display) {
        self.add(self.location(name).diagnostic(wrong, right));
    }

    /// Returns the location of the field `name`, or of the table without it, for a diagnostic that
    /// shows only later.
    pub(super) fn location(&self, name: &str) -> Location {
        let span = self.entries.get_key_value(name).map_or(self.span.clone(), |(key, _)| key.span());
        Location {
            file: self.source.path.into(),
            line: self.source.line(span.start),
            field: self.field(name),
        }
    }

    /// Adds a diagnostic found elsewhere: in a file that this one names, or at a [`Location`].
    pub(super) fn add(&self, diagnostic: Diagnostic) {
        self.source.diagnostics.borrow_mut().push(diagnostic);
    }

    fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    fn report_unknown(&self) {
        let known = self.known.borrow();
        for key in self.entries.keys() {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let right = match nearest(name, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the fields here are {}", known.join(", ")),
            };
            let field = self.field(&printable(name));
            self.source.report(&key.span(), &field, "is no field that is known here".into(), right);
        }
    }
}

/// The numbers that a field takes.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    low: f64,
    low_included: bool,
    high: f64,
}

impl Bounds {
    /// Numbers above `low` and at most `high`.
    pub(super) const fn above(low: f64, high: f64) -> Bounds {
        Bounds { low, low_included: false, high }
    }

    /// Numbers from `low` to `high`, both included.
    pub(super) const fn from(low: f64, high: f64) -> Bounds {
        Bounds { low, low_included: true, high }
    }

    /// True if `x` is within the bounds.
    pub(super) fn contain(&self, x: f64) -> bool {
        (x > self.low || (self.low_included && x == self.low)) && x <= self.high
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low_included {
            true => write!(f, "a number from {} to {}", self.low, self.high),
            false => write!(f, "a number above {} and up to {}", self.low, self.high),
        }
    }
}

/// A field's value and its path.
pub(super) struct TomlValue<'d> {
    source: &'d TomlFile<'d>,
    path: String,
    value: &'d Spanned<DeValue<'d>>,
}

impl<'d> TomlValue<'d> {
    /// Reports that the value is wrong.
    pub(super) fn report(&self, wrong: impl fmt::Display, right: impl fmt::Display) {
        self.source.report(&self.value.span(), &self.path, wrong.to_string(), right.to_string());
    }

    /// Reports that the value is not what `right` describes.
    pub(super) fn refuse(&self, right: impl fmt::Display) {
        let quote = self.source.quote(&self.value.span());
        let wrong = match self.value.get_ref() {
            DeValue::Table(_) => "is a table".to_string(),
            DeValue::Array(_) => "is a list".to_string(),
            value if value.is_str() => format!("{quote} is a string"),
            _ => format!("is {quote}"),
        };
        self.report(wrong, format!("it must be {right}"));
    }

    /// Reports that a value of the right type is not what `right` describes.
    pub(super) fn refuse_value(&self, right: impl fmt::Display) {
        self.report(format!("is {}", self.source.quote(&self.value.span())), format!("it must be {right}"));
    }

    /// True if the value is a string, for fields that may also be something else.
    pub(super) fn is_text(&self) -> bool {
        self.value.get_ref().is_str()
    }

    /// True if the value is a table, for fields that may also be something else.
    pub(super) fn is_table(&self) -> bool {
        self.value.get_ref().is_table()
    }

    /// True if the value is a whole number, for fields that may also be something else.
    pub(super) fn is_whole(&self) -> bool {
        self.value.get_ref().is_integer()
    }

    /// Reads a number.
    pub(super) fn number(&self, bounds: Bounds) -> Option<f64> {
        let number = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(_) => self.whole().map(|whole| whole as f64),
            _ => None,
        };
        let good = number.filter(|&x: &f64| bounds.contain(x));
        if good.is_none() {
            self.refuse(bounds);
        }
        good
    }

    /// Reads a whole number.
    pub(super) fn integer(&self, within: RangeInclusive<u64>) -> Option<u64> {
        let good = self.whole().and_then(|x| u64::try_from(x).ok()).filter(|x| within.contains(x));
        if good.is_none() {
            self.refuse(format!("a whole number from {} to {}", within.start(), within.end()));
        }
        good
    }

    /// Reads a whole number as [`TomlValue::integer`] does, as a `usize`.
    pub(super) fn count(&self, within: RangeInclusive<usize>) -> Option<usize> {
        let within = *within.start() as u64..=*within.end() as u64;
        self.integer(within).map(|x| x as usize)
    }

    /// Reads `true` or `false`.
    pub(super) fn truth(&self) -> Option<bool> {
        let truth = self.value.get_ref().as_bool();
        if truth.is_none() {
            self.refuse("true or false");
        }
        truth
    }

    fn whole(&self) -> Option<i128> {
        let integer = self.value.get_ref().as_integer()?;
        i128::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// Reads a string; `right` says of what kind: "a file's name".
    pub(super) fn text(&self, right: impl fmt::Display) -> Option<&'d str> {
        let text = self.value.get_ref().as_str();
        if text.is_none() {
            self.refuse(format!("a string in quotes: {right}"));
        }
        text
    }

    /// Reads a name, which is not empty; `what` says of what.
    pub(super) fn name(&self, what: &str) -> Option<String> {
        let name = self.text(what)?;
        if name.is_empty() {
            self.refuse_value("a name");
            return None;
        }
        Some(name.to_owned())
    }

    /// Reads one of these words.
    pub(super) fn word<'w>(&self, words: &[&'w str]) -> Option<&'w str> {
        let right = format!("one of {}", quoted(words));
        let text = self.text(&right)?;
        let found = words.iter().copied().find(|word| *word == text);
        if found.is_none() {
            match nearest(text, words) {
                Some(near) => self.refuse_value(format!("{right} (did you mean \"{near}\"?)")),
                None => self.refuse_value(right),
            }
        }
        found
    }

    /// Reads a table as `read` does; fields that it does not ask for are diagnostics.
    pub(super) fn table<T>(&self, read: impl FnOnce(&TomlTable<'d>) -> Option<T>) -> Option<T> {
        let Some(entries) = self.value.get_ref().as_table() else {
            self.refuse("a table");
            return None;
        };
        let table = TomlTable::new(self.source, entries, self.path.clone(), self.value.span());
        let value = read(&table);
        table.report_unknown();
        value
    }

    /// Returns the values of a list.
    pub(super) fn items(&self, right: &str) -> Option<Vec<TomlValue<'d>>> {
        let Some(items) = self.value.get_ref().as_array() else {
            self.report("is no list", right);
            return None;
        };
        let items: &'d DeArray<'d> = items;
        let item =
            |(at, value)| TomlValue { source: self.source, path: format!("{}[{at}]", self.path), value };
        Some(items.iter().enumerate().map(item).collect())
    }
}

/// Reads every item of a list, so that the diagnostics of all come out; `None` if one has any.
pub(super) fn read_each<'d, T>(
    items: &[TomlValue<'d>],
    read: impl FnMut(&TomlValue<'d>) -> Option<T>,
) -> Option<Vec<T>> {
    let read: Vec<Option<T>> = items.iter().map(read).collect();
    read.into_iter().collect()
}

/// Returns the word of `words` that was probably meant.
fn nearest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return None;
    }
    let near = words.iter().map(|word| (strsim::osa_distance(&text.to_lowercase(), word), *word)).min()?;
    // Up to a third of the word wrong: more alike than that is chance.
    (near.0 * 3 <= near.1.len()).then_some(near.1)
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// A name as it may stand in a message: one line, not too long.
fn printable(name: &str) -> String {
    const LONGEST: usize = 40;
    let short: String = name.chars().take(LONGEST).collect();
    short.escape_debug().to_string()
}
