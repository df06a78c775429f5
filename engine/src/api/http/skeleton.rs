//! Cuts the elements of inputs out of a large JSON body, so that the parser of JSON sees a short
//! text. One pass over the bytes, in slices, without memory but for that text.

use crate::api::inference::bounds::MAX_RANK;
use crate::api::net::memory::ReadBounds;
use crate::api::problem::Problem;
use hyper::StatusCode;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// The size in bytes up to which a body is parsed as it is.
const SMALL: usize = 64 << 10;

/// The most bytes of JSON beside the elements of inputs.
pub(in crate::api) const MAX_TEXT: usize = 256 << 10;

/// The deepest nesting of a body: elements lie three deep.
const MAX_DEPTH: usize = MAX_RANK + 3;

/// The bytes that are scanned at a time.
const PIECE: usize = 16 << 10;

/// The bytes that are scanned in the time in which one is parsed.
const SCANNED_PER_PARSED: usize = 4;

/// A JSON body, of which the arrays `data` of its inputs may lie elsewhere than in its text.
pub(super) struct Skeleton<'a> {
    body: &'a [u8],
    text: Cow<'a, [u8]>,
    /// Where in the text a number stands for an array, and the array's place in the body.
    cuts: Vec<(usize, Range<usize>)>,
}

impl<'a> Skeleton<'a> {
    /// Finds the arrays of elements, if `body` is large. Whether it is JSON is left to the parsers
    /// of the text and of the elements.
    ///
    /// Errors: 400 if it is nested too deep, 413 if too much of it is no element, 429.
    pub(super) async fn of(body: &'a [u8], bounds: &mut ReadBounds) -> Result<Skeleton<'a>, Problem> {
        if body.len() <= SMALL {
            return Ok(Skeleton { body, text: Cow::Borrowed(body), cuts: Vec::new() });
        }
        // A string of the text may be copied once more when it is parsed.
        bounds.memory.grow(2 * MAX_TEXT.min(body.len()))?;
        let mut scanner = Scanner::new(body);
        for start in (0..body.len()).step_by(PIECE) {
            let end = body.len().min(start + PIECE);
            for (at, &byte) in (start..end).zip(&body[start..end]) {
                scanner.byte(at, byte)?;
            }
            scanner.check_text(end)?;
            bounds.slices.did((end - start) / SCANNED_PER_PARSED).await;
        }
        if scanner.cut.is_none() {
            scanner.copy(body.len())?;
        }
        Ok(Skeleton { body, text: Cow::Owned(scanner.text), cuts: scanner.cuts })
    }

    /// Returns the text to parse.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the value that `value`, which was parsed from the text, stands for.
    pub(super) fn value<'b>(&'b self, value: &'b RawValue) -> &'b [u8] {
        let offset = (value.get().as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        match self.cuts.binary_search_by_key(&offset, |(at, _)| *at) {
            Ok(found) => &self.body[self.cuts[found].1.clone()],
            Err(_) => value.get().as_bytes(),
        }
    }

    /// Returns true if the text differs from the body.
    pub(super) fn is_cut(&self) -> bool {
        !self.cuts.is_empty()
    }
}

/// The scan of a body: where it is, and the text so far.
struct Scanner<'a> {
    body: &'a [u8],
    text: Vec<u8>,
    cuts: Vec<(usize, Range<usize>)>,
    /// The bytes before this are in the text, or cut.
    copied: usize,
    depth: usize,
    /// The start of the string that it is in.
    string: Option<usize>,
    escaped: bool,
    /// The last whole string, and the last one before a colon.
    last: Range<usize>,
    key: Range<usize>,
    /// True in the array of inputs.
    in_inputs: bool,
    /// The start and the depth of the array that is being cut.
    cut: Option<(usize, usize)>,
}

impl<'a> Scanner<'a> {
    fn new(body: &'a [u8]) -> Scanner<'a> {
        Scanner {
            body,
            text: Vec::new(),
            cuts: Vec::new(),
            copied: 0,
            depth: 0,
            string: None,
            escaped: false,
            last: 0..0,
            key: 0..0,
            in_inputs: false,
            cut: None,
        }
    }

    #[inline]
    fn byte(&mut self, at: usize, byte: u8) -> Result<(), Problem> {
        if let Some(start) = self.string {
            if std::mem::take(&mut self.escaped) {
                return Ok(());
            }
            match byte {
                b'\\' => self.escaped = true,
                b'"' => (self.string, self.last) = (None, start..at + 1),
                _ => {}
            }
            return Ok(());
        }
        match byte {
            b'"' => self.string = Some(at),
            b':' => self.key = self.last.clone(),
            b'[' | b'{' => return self.open(at, byte),
            b']' | b'}' => return self.close(at),
            _ if is_space(byte) && at > 0 && is_space(self.body[at - 1]) => return self.skip(at),
            _ => {}
        }
        Ok(())
    }

    /// Leaves out a space that follows another one.
    fn skip(&mut self, at: usize) -> Result<(), Problem> {
        if self.cut.is_none() {
            self.copy(at.max(self.copied))?;
            self.copied = at + 1;
        }
        Ok(())
    }

    fn open(&mut self, at: usize, byte: u8) -> Result<(), Problem> {
        if self.depth == MAX_DEPTH {
            return Err(Problem::bad(format!("the body is nested more than {MAX_DEPTH} deep")));
        }
        if byte == b'[' && self.cut.is_none() {
            let key = &self.body[self.key.clone()];
            if self.depth == 1 && key == b"\"inputs\"" {
                self.in_inputs = true;
            } else if self.depth == 3 && self.in_inputs && key == b"\"data\"" {
                self.copy(at)?;
                self.cut = Some((at, self.depth));
            }
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self, at: usize) -> Result<(), Problem> {
        // A bracket too many is left to the parser.
        self.depth = self.depth.saturating_sub(1);
        if let Some((start, _)) = self.cut.filter(|&(_, depth)| depth == self.depth) {
            self.cut = None;
            self.cuts.push((self.text.len(), start..at + 1));
            self.text.push(b'0');
            self.copied = at + 1;
        }
        self.in_inputs &= self.depth >= 2;
        Ok(())
    }

    /// Appends the body up to `end` to the text.
    fn copy(&mut self, end: usize) -> Result<(), Problem> {
        self.check_text(end)?;
        self.text.extend_from_slice(&self.body[self.copied..end]);
        self.copied = end;
        Ok(())
    }

    /// Checks the length that the text has if it goes on to `end`.
    fn check_text(&self, end: usize) -> Result<(), Problem> {
        if self.cut.is_none() && self.text.len() + (end - self.copied) > MAX_TEXT {
            let message = format!("the body has over {MAX_TEXT} bytes of JSON beside the data of its inputs");
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Ok(())
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::memory::CoreMemory;
    use crate::api::net::slices::{Slices, ready_now};
    use std::rc::Rc;

    /// The text of a body of which even a small one is cut, and what was cut.
    fn skeleton(body: &str) -> Result<(String, Vec<String>), String> {
        let body = format!("{body}{}", " ".repeat(SMALL));
        let memory = CoreMemory::new(1 << 20, 1 << 20).lease(&Rc::default());
        let mut bounds = ReadBounds { limit: 1 << 20, memory, slices: Slices::alone() };
        let skeleton = ready_now(Skeleton::of(body.as_bytes(), &mut bounds)).map_err(|p| p.message)?;
        let cut = |(_, place): &(usize, Range<usize>)| body[place.clone()].to_owned();
        let text = String::from_utf8(skeleton.text().to_vec()).unwrap();
        Ok((text.trim_end().to_owned(), skeleton.cuts.iter().map(cut).collect()))
    }

    #[test]
    fn only_the_elements_of_inputs_are_cut() {
        for (body, text, cut) in [
            (
                r#"{"inputs":[{"name":"a\"]","data":[[1],["]\\"]],"shape":[2]},{"data" : [ ]}],"id":"[0]"}"#,
                r#"{"inputs":[{"name":"a\"]","data":0,"shape":[2]},{"data" : 0}],"id":"[0]"}"#,
                &[r#"[[1],["]\\"]]"#, "[ ]"][..],
            ),
            ("{\"a\" :  [1 \n\t 2],  \"b\":\"c  d\"}", r#"{"a" : [1 2], "b":"c  d"}"#, &[]),
            (r#"{"outputs":[{"data":[1]}]}"#, r#"{"outputs":[{"data":[1]}]}"#, &[]),
            (
                r#"{"inputs":[{"x":{"data":[1]},"data":5}]}"#,
                r#"{"inputs":[{"x":{"data":[1]},"data":5}]}"#,
                &[],
            ),
            (r#"{"inputs":[{"data":[1"#, r#"{"inputs":[{"data":"#, &[]),
            ("]]}", "]]}", &[]),
        ] {
            let (found, cuts) = skeleton(body).unwrap();
            assert_eq!(
                (found.as_str(), cuts.iter().map(String::as_str).collect::<Vec<_>>()),
                (text, cut.to_vec())
            );
        }
    }

    #[test]
    fn what_is_too_deep_or_too_long_is_refused() {
        assert!(skeleton(&"[".repeat(100)).unwrap_err().contains("more than 35 deep"));
        let long = format!("{{\"id\":\"{}\"}}", "a".repeat(MAX_TEXT));
        assert!(skeleton(&long).unwrap_err().contains("over 262144 bytes"));
    }
}
