//! Protobuf's text format, as Triton's `config.pbtxt` is written: a tree of fields that know their
//! lines. No schema is needed to read one, so that an unknown field can be reported
//! with its line instead of ending the reading. The tokens are `buffa`'s; what the fields mean is
//! for `triton.rs`, which calls this.

use crate::config::diagnostics::{Diagnostic, Location};
use buffa::text::{ParseError, TokenKind, Tokenizer, unescape_str};
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// A file of this many bytes or more is no file that a person wrote.
const MAX_FILE_BYTES: usize = 1 << 20;

/// A field and its line.
#[derive(Debug)]
pub struct PbtxtField<'t> {
    /// The name of the field.
    pub name: &'t str,
    /// The line, counted from 1.
    pub line: usize,
    /// The value of the field.
    pub value: PbtxtValue<'t>,
}

/// A value of a field.
#[derive(Debug)]
pub enum PbtxtValue<'t> {
    /// A number, a word or a string with its quotes, as it is written.
    Scalar(&'t str),
    /// `{ … }`
    Message(Vec<PbtxtField<'t>>),
    /// `[ … ]`
    List(Vec<PbtxtValue<'t>>),
}

impl PbtxtField<'_> {
    /// Returns its location in the file at `path`.
    pub(super) fn location(&self, path: &Path) -> Location {
        Location { file: path.into(), line: self.line, field: self.name.to_owned() }
    }

    /// Returns the diagnostic, at `location`, that its value is not what `right` describes.
    pub(super) fn is_not(&self, location: Location, right: impl fmt::Display) -> Diagnostic {
        location.diagnostic(format!("is {}", self.value.quote()), format!("it must be {right}"))
    }
}

/// Returns the first field of this name.
pub(super) fn named<'v, 't>(fields: &'v [PbtxtField<'t>], name: &str) -> Option<&'v PbtxtField<'t>> {
    fields.iter().find(|field| field.name == name)
}

impl<'t> PbtxtValue<'t> {
    /// Returns the text of a string.
    pub fn text(&self) -> Option<Cow<'t, str>> {
        match self {
            PbtxtValue::Scalar(raw) if raw.starts_with(['"', '\'']) => unescape_str(raw).ok(),
            _ => None,
        }
    }

    /// Returns a name without quotes: that of an enum's value.
    pub fn word(&self) -> Option<&'t str> {
        match self {
            PbtxtValue::Scalar(raw) if raw.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                Some(raw)
            }
            _ => None,
        }
    }

    /// Returns a whole number.
    pub fn whole(&self) -> Option<i64> {
        match self {
            PbtxtValue::Scalar(raw) => raw.parse().ok(),
            _ => None,
        }
    }

    /// Returns the fields of a message.
    pub fn fields(&self) -> Option<&[PbtxtField<'t>]> {
        match self {
            PbtxtValue::Message(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns the values of a repeated field: those of the list, or the single one.
    pub fn each(&self) -> &[PbtxtValue<'t>] {
        match self {
            PbtxtValue::List(values) => values,
            one => std::slice::from_ref(one),
        }
    }

    /// Returns the text of the value, short enough for a message.
    pub fn quote(&self) -> String {
        const LONGEST: usize = 40;
        match self {
            PbtxtValue::Scalar(raw) if raw.chars().count() <= LONGEST => (*raw).to_owned(),
            PbtxtValue::Scalar(raw) => raw.chars().take(LONGEST).chain(['…']).collect(),
            PbtxtValue::Message(_) => "a message".to_owned(),
            PbtxtValue::List(_) => "a list".to_owned(),
        }
    }
}

/// Writes the field as text that [`parse`] reads as the same.
impl fmt::Display for PbtxtField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value)
    }
}

/// Writes the value as text that [`parse`] reads as the same.
impl fmt::Display for PbtxtValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PbtxtValue::Scalar(raw) => f.write_str(raw),
            PbtxtValue::Message(fields) => {
                f.write_str("{")?;
                fields.iter().try_for_each(|field| write!(f, " {field}"))?;
                f.write_str(" }")
            }
            PbtxtValue::List(values) => {
                f.write_str("[")?;
                values
                    .iter()
                    .enumerate()
                    .try_for_each(|(at, value)| write!(f, "{} {value}", if at > 0 { "," } else { "" }))?;
                f.write_str(" ]")
            }
        }
    }
}

/// Returns the text of the file at `path`.
///
/// Errors: it can't be read, is too large, or no UTF-8.
pub(super) fn load(path: &Path) -> Result<String, Diagnostic> {
    let diagnostic = |wrong: String, right: &str| {
        Location { file: path.into(), line: 1, field: "config.pbtxt".into() }.diagnostic(wrong, right)
    };
    let bytes = std::fs::read(path).map_err(|error| {
        diagnostic(format!("the file can't be read ({error})"), "let this process read it")
    })?;
    if bytes.len() >= MAX_FILE_BYTES {
        return Err(diagnostic(
            format!("the file has {} bytes", bytes.len()),
            "such files have less than 1 MiB; is it one?",
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| diagnostic("this is no UTF-8 text".into(), "write it as protobuf text, which is UTF-8"))
}

/// Parses `text`, the content of the file at `path`, into fields.
///
/// Errors: it is no text format, with the line.
pub fn parse<'t>(path: &Path, text: &'t str) -> Result<Vec<PbtxtField<'t>>, Diagnostic> {
    let mut tokens = Tokenizer::new(text);
    let fields = message(&mut tokens, TokenKind::Eof);
    fields.map_err(|error| {
        let location =
            Location { file: path.into(), line: error.line as usize, field: "config.pbtxt".into() };
        location.diagnostic(
            error.kind,
            "see protobuf.dev/reference/protobuf/textformat-spec for how it is written",
        )
    })
}

/// Parses fields up to `end`, which is consumed.
fn message<'t>(tokens: &mut Tokenizer<'t>, end: TokenKind) -> Result<Vec<PbtxtField<'t>>, ParseError> {
    let mut fields = Vec::new();
    loop {
        let token = tokens.read()?;
        // The tokenizer lets nothing but a name and the end come here.
        if token.kind == end || token.kind != TokenKind::Name {
            return Ok(fields);
        }
        let line = tokens.line_col(token.pos).0 as usize;
        fields.push(PbtxtField { name: token.raw, line, value: value(tokens)? });
    }
}

fn value<'t>(tokens: &mut Tokenizer<'t>) -> Result<PbtxtValue<'t>, ParseError> {
    let token = tokens.read()?;
    Ok(match token.kind {
        TokenKind::MessageOpen => PbtxtValue::Message(message(tokens, TokenKind::MessageClose)?),
        TokenKind::ListOpen => {
            let mut values = Vec::new();
            while tokens.peek()?.kind != TokenKind::ListClose {
                values.push(value(tokens)?);
            }
            tokens.read()?;
            PbtxtValue::List(values)
        }
        _ => PbtxtValue::Scalar(token.raw),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<PbtxtField<'_>>, Diagnostic> {
        parse(Path::new("config.pbtxt"), text)
    }

    #[test]
    fn every_way_to_write_a_field_is_read_with_its_line() {
        let text = "# note\nname: \"a\" 'b'\nmax_batch_size: 8;\n\
                    input [ { name: \"x\", dims: [ -1, 3 ] }, < name: \"y\" dims: 4 dims: 5 > ]\n\
                    dynamic_batching { }";
        let fields = read(text).unwrap();
        let lines: Vec<(&str, usize)> = fields.iter().map(|field| (field.name, field.line)).collect();
        assert_eq!(lines, [("name", 2), ("max_batch_size", 3), ("input", 4), ("dynamic_batching", 5)]);
        assert_eq!(fields[0].value.text().as_deref(), Some("ab"));
        assert_eq!(fields[1].value.whole(), Some(8));
        let inputs = fields[2].value.each();
        let dims = |input: &PbtxtValue<'_>| -> Vec<i64> {
            let of = input.fields().unwrap().iter().filter(|field| field.name == "dims");
            of.flat_map(|field| field.value.each()).filter_map(PbtxtValue::whole).collect()
        };
        assert_eq!((dims(&inputs[0]), dims(&inputs[1])), (vec![-1, 3], vec![4, 5]));
        assert_eq!(fields[3].value.fields().map(<[_]>::len), Some(0));
    }

    #[test]
    fn what_is_no_text_format_is_reported_with_its_line() {
        for (text, line) in [("name: \"a\"\ninput {", 2), ("\n\nname: }", 3), ("a: 1\n}", 2), ("a: [1 2]", 1)]
        {
            let diagnostic = read(text).unwrap_err();
            assert_eq!(diagnostic.line, line, "{diagnostic}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9:{}<>\\[\\],;\"'\\\\# \n-]{0,80}") {
            if let Ok(fields) = read(&text) {
                fields.iter().for_each(|field| { let _ = (field.value.text(), field.value.quote()); });
                let written = |fields: &[PbtxtField<'_>]| fields.iter().map(|field| format!("{field}\n")).collect::<String>();
                let again = written(&fields);
                prop_assert_eq!(written(&read(&again).unwrap()), again);
            }
        }
    }
}
