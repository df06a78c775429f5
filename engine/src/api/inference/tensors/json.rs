//! Tensors as JSON: a request's `data`, flat or nested, straight into the bytes of input rows, and
//! output rows' bytes back into a flat list. Pure; called on the API core's thread.
//!
//! This is one pass over a text that need not be JSON, in slices: brackets, commas and the grammar
//! of numbers are checked here, strings by serde_json. Each number is parsed once, as the type it
//! is for: a `u64` stays exact, nothing wraps.

use super::elements;
use crate::api::inference::bounds::{InputFault, MAX_RANK};
use crate::api::net::memory::ReadBounds;
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use half::{bf16, f16};
use hyper::StatusCode;
use std::borrow::Cow;
use std::str::FromStr;
use symphony_gpu::DataType;

/// The most characters of a wrong value that an error repeats.
const QUOTED: usize = 40;

/// The longest number, in characters. The longest `f64` without rounding has 1,077.
const MAX_NUMBER: usize = 2_048;

/// The longest form of a byte of a string: `\u0000`.
const MAX_ESCAPE: usize = 6;

/// The bytes after which work is reported.
const PIECE: usize = 4_096;

/// Parses `json`, a JSON array that holds the elements of a tensor of `shape` in row-major order,
/// flat or nested as the shape says, into the tensor's bytes on the wire. Elements of BYTES are
/// strings.
///
/// Errors: what was wrong, at which element, and what would be right; 413 if the elements take more
/// than the limit, 429 if there is no memory for them.
pub(in crate::api) async fn parse(
    json: &[u8],
    datatype: DataType,
    shape: &[usize],
    bounds: &mut ReadBounds,
) -> Result<Vec<u8>, InputFault> {
    let expected = shape.iter().try_fold(1usize, |all, &dimension| all.checked_mul(dimension));
    let expected = expected.unwrap_or(usize::MAX);
    // A shape may promise more than comes: an element takes two characters at the least, and 8
    // bytes at most, or its text and a length.
    let promised = expected.saturating_mul(datatype.size_bytes());
    let room = promised.min(json.len().saturating_mul(4));
    if room > bounds.limit {
        let message = format!("the elements of an input take {room} bytes; the limit is {}", bounds.limit);
        return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message).into());
    }
    bounds.memory.grow(room)?;
    let place = JsonElements { json, datatype, shape, expected, room, slices: &bounds.slices };
    Ok(place.parse().await?)
}

impl JsonElements<'_> {
    async fn parse(&self) -> Result<Vec<u8>, String> {
        match self.datatype {
            DataType::Bool => self.fill(boolean).await,
            DataType::Uint8 => self.fill(integer::<u8, 1>(u8::to_le_bytes)).await,
            DataType::Uint16 => self.fill(integer::<u16, 2>(u16::to_le_bytes)).await,
            DataType::Uint32 => self.fill(integer::<u32, 4>(u32::to_le_bytes)).await,
            DataType::Uint64 => self.fill(integer::<u64, 8>(u64::to_le_bytes)).await,
            DataType::Int8 => self.fill(integer::<i8, 1>(i8::to_le_bytes)).await,
            DataType::Int16 => self.fill(integer::<i16, 2>(i16::to_le_bytes)).await,
            DataType::Int32 => self.fill(integer::<i32, 4>(i32::to_le_bytes)).await,
            DataType::Int64 => self.fill(integer::<i64, 8>(i64::to_le_bytes)).await,
            DataType::Fp16 => self.fill(half).await,
            DataType::Bf16 => self.fill(brain_half).await,
            DataType::Fp32 => self.fill(single).await,
            DataType::Fp64 => self.fill(double).await,
            DataType::Bytes(most) => self.read(|text, out| string(text, most, out)).await,
        }
    }
}

fn boolean(text: &str) -> Option<[u8; 1]> {
    match text {
        "true" => Some([1]),
        "false" => Some([0]),
        _ => None,
    }
}

fn half(text: &str) -> Option<[u8; 2]> {
    let value = f16::from_f64(number(text)?);
    value.is_finite().then(|| value.to_le_bytes())
}

fn brain_half(text: &str) -> Option<[u8; 2]> {
    let value = bf16::from_f64(number(text)?);
    value.is_finite().then(|| value.to_le_bytes())
}

fn single(text: &str) -> Option<[u8; 4]> {
    let value: f32 = number(text)?;
    value.is_finite().then(|| value.to_le_bytes())
}

fn double(text: &str) -> Option<[u8; 8]> {
    let value: f64 = number(text)?;
    value.is_finite().then(|| value.to_le_bytes())
}

fn string(text: &str, most: u32, out: &mut Vec<u8>) -> Option<()> {
    let text: Cow<'_, str> = serde_json::from_str(text).ok()?;
    (text.len() <= most as usize).then(|| elements::put(text.as_bytes(), out))
}

fn integer<T: FromStr, const N: usize>(bytes: fn(T) -> [u8; N]) -> impl Fn(&str) -> Option<[u8; N]> {
    move |text| text.parse().ok().map(bytes)
}

/// Rust also parses `inf` and `nan`, but no JSON value is spelled so; `true` and strings it
/// refuses.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// The JSON to read, and the tensor that it must be.
struct JsonElements<'a> {
    json: &'a [u8],
    datatype: DataType,
    shape: &'a [usize],
    /// The number of elements that the shape wants.
    expected: usize,
    /// The memory for them, in bytes.
    room: usize,
    slices: &'a Slices,
}

impl JsonElements<'_> {
    /// Reads elements of `N` bytes.
    async fn fill<const N: usize>(
        &self,
        element: impl Fn(&str) -> Option<[u8; N]>,
    ) -> Result<Vec<u8>, String> {
        self.read(|text, out| element(text).map(|bytes| out.extend(bytes))).await
    }

    /// Reads all elements; `element` appends one to the bytes, or says that it is none of the type.
    async fn read(&self, element: impl Fn(&str, &mut Vec<u8>) -> Option<()>) -> Result<Vec<u8>, String> {
        let JsonElements { json, datatype, shape, expected, room, .. } = *self;
        let mut out = Vec::with_capacity(room);
        let mut nesting = Nesting::new(shape);
        let (mut at, mut reported) = (0, 0);
        while at < json.len() {
            if at - reported >= PIECE {
                self.slices.did(at - reported).await;
                reported = at;
            }
            match json[at] {
                b'[' => nesting.open()?,
                b']' => nesting.close()?,
                b',' => nesting.comma()?,
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => {
                    let token = token(&json[at..], datatype);
                    nesting.element()?;
                    if nesting.elements > expected {
                        return Err(too_many(json.len(), shape));
                    }
                    token
                        .valid()
                        .and_then(|text| element(text, &mut out))
                        .ok_or_else(|| wrong_value(token.0, nesting.elements - 1, datatype))?;
                    at += token.0.len();
                    continue;
                }
            }
            at += 1;
        }
        nesting.end()?;
        if nesting.elements != expected {
            let found = nesting.elements;
            return Err(format!("data has {found} elements, but shape {shape:?} needs {expected}"));
        }
        Ok(out)
    }
}

/// The position in nested arrays.
struct Nesting<'a> {
    shape: &'a [usize],
    /// Elements or arrays seen so far in each open array, outermost first.
    counts: [usize; MAX_RANK],
    depth: usize,
    /// The depth of elements, known from the first element on.
    leaf: Option<usize>,
    elements: usize,
    before: Before,
}

/// The token before the place that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Start,
    Open,
    Comma,
    /// An element, or the end of an array.
    Value,
}

impl Nesting<'_> {
    fn new(shape: &[usize]) -> Nesting<'_> {
        let counts = [0; MAX_RANK];
        Nesting { shape, counts, depth: 0, leaf: None, elements: 0, before: Before::Start }
    }

    /// Notes that a value begins.
    fn value(&mut self, becomes: Before) -> Result<(), String> {
        if self.before == Before::Value {
            return Err(format!("data lacks a comma after element {}", self.elements));
        }
        self.before = becomes;
        Ok(())
    }

    fn comma(&mut self) -> Result<(), String> {
        if self.before != Before::Value || self.depth == 0 {
            return Err(format!("data has a comma out of place after element {}", self.elements));
        }
        self.before = Before::Comma;
        Ok(())
    }

    fn end(&self) -> Result<(), String> {
        match (self.before, self.depth) {
            (Before::Value, 0) => Ok(()),
            (Before::Start, _) => Err("data is not an array; put the elements in [ and ]".into()),
            _ => Err("data has a [ without its ]".into()),
        }
    }

    fn open(&mut self) -> Result<(), String> {
        self.value(Before::Open)?;
        if self.depth == MAX_RANK || self.leaf.is_some_and(|leaf| self.depth >= leaf) {
            return Err(format!("data holds an array where an element of shape {:?} belongs", self.shape));
        }
        self.counts[self.depth] = 0;
        self.depth += 1;
        Ok(())
    }

    fn element(&mut self) -> Result<(), String> {
        self.value(Before::Value)?;
        if self.depth == 0 {
            return Err("data is not an array; put the elements in [ and ]".into());
        }
        let rank = self.shape.len();
        match self.leaf {
            None if self.depth != 1 && self.depth != rank => {
                return Err(format!(
                    "data is nested {} deep; it must be flat or, as shape {:?} says, {rank} deep",
                    self.depth, self.shape
                ));
            }
            None => self.leaf = Some(self.depth),
            Some(leaf) if leaf != self.depth => {
                return Err(format!("data[{}] lies at another depth than the element before", self.elements));
            }
            Some(_) => {}
        }
        self.counts[self.depth - 1] += 1;
        self.elements += 1;
        Ok(())
    }

    /// An array of nested data is as long as its dimension; flat data is counted as a whole.
    fn close(&mut self) -> Result<(), String> {
        if self.before == Before::Comma {
            return Err(format!("data has a comma out of place after element {}", self.elements));
        }
        self.before = Before::Value;
        self.depth = self.depth.checked_sub(1).ok_or("data has a ] without its [")?;
        let found = self.counts[self.depth];
        if found == 0 && !self.shape.contains(&0) {
            return Err(format!("data holds an empty array, but shape {:?} has none", self.shape));
        }
        let nested = self.leaf.is_some_and(|leaf| leaf == self.shape.len() && leaf > 1);
        if nested && found != self.shape[self.depth] {
            let (level, want) = (self.depth, self.shape[self.depth]);
            let shape = self.shape;
            return Err(format!(
                "data holds an array of {found} at level {level}, but shape {shape:?} wants {want} there"
            ));
        }
        if let Some(outer) = self.depth.checked_sub(1) {
            self.counts[outer] += 1;
        }
        Ok(())
    }
}

/// The text of a value that is no array, which may not be JSON.
#[derive(Clone, Copy)]
struct JsonToken<'a>(&'a [u8]);

/// Returns the value that `text` starts with. An object is one token, as no element is an object;
/// so is the rest of the text if the value is longer than any of the type.
fn token(text: &[u8], datatype: DataType) -> JsonToken<'_> {
    let length = match text[0] {
        b'{' => None,
        b'"' => {
            let most = if let DataType::Bytes(most) = datatype { most as usize } else { QUOTED };
            let within = text.len().min(most.saturating_mul(MAX_ESCAPE).saturating_add(2));
            string_length(&text[..within])
        }
        _ => text[..text.len().min(MAX_NUMBER + 1)]
            .iter()
            .position(|b| matches!(b, b',' | b'[' | b']' | b' ' | b'\n' | b'\r' | b'\t')),
    };
    JsonToken(&text[..length.unwrap_or(text.len())])
}

impl<'a> JsonToken<'a> {
    /// Returns the text if it is a literal, a number or begins like a string.
    fn valid(self) -> Option<&'a str> {
        let valid = match self.0[0] {
            b'-' | b'0'..=b'9' => is_number(self.0),
            b't' | b'f' | b'"' => true,
            _ => false,
        };
        if valid { std::str::from_utf8(self.0).ok() } else { None }
    }
}

/// Returns true if `text` is a number by JSON's grammar, and not too long.
fn is_number(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> (usize, &[u8]) {
        let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (count, &text[count..])
    }
    if text.len() > MAX_NUMBER {
        return false;
    }
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = digits(text);
    if whole == 0 || (whole > 1 && text[0] == b'0') {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let (count, after) = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = after;
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let (count, after) = digits(exponent);
        return count > 0 && after.is_empty();
    }
    rest.is_empty()
}

/// Returns the length of the string that `text` starts with, its quotes included.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    let end = text.iter().skip(1).position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some(end + 2)
}

fn too_many(length: usize, shape: &[usize]) -> String {
    let most = shape.iter().product::<usize>();
    format!("data of {length} bytes has more elements than the {most} of shape {shape:?}")
}

fn wrong_value(text: &[u8], at: usize, datatype: DataType) -> String {
    // A character has at most 4 bytes.
    let start = String::from_utf8_lossy(&text[..text.len().min(4 * QUOTED)]);
    let mut quoted: String = start.chars().take(QUOTED).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    format!("data[{at}] is {quoted}, which is not {}", what_is_right(datatype))
}

fn what_is_right(datatype: DataType) -> String {
    let range = |low: i128, high: u64| format!("an integer from {low} to {high}, as {datatype} needs");
    match datatype {
        DataType::Bool => "true or false, as BOOL needs".into(),
        DataType::Uint8 => range(0, u8::MAX.into()),
        DataType::Uint16 => range(0, u16::MAX.into()),
        DataType::Uint32 => range(0, u32::MAX.into()),
        DataType::Uint64 => range(0, u64::MAX),
        DataType::Int8 => range(i8::MIN.into(), i8::MAX as u64),
        DataType::Int16 => range(i16::MIN.into(), i16::MAX as u64),
        DataType::Int32 => range(i32::MIN.into(), i32::MAX as u64),
        DataType::Int64 => range(i64::MIN.into(), i64::MAX as u64),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            format!("a number that {datatype} can hold")
        }
        DataType::Bytes(most) => {
            format!("a string of at most {most} bytes, the most that this tensor's may have")
        }
    }
}

/// Appends the elements in `bytes`, as rows have them, as a flat JSON array. Floats are written as
/// the shortest decimal that reads back as the same value of their type; NaN and infinities, which
/// JSON does not have, as `null`; of BYTES, what is not UTF-8 as U+FFFD.
pub(in crate::api) fn write(out: &mut Vec<u8>, datatype: DataType, bytes: &[u8]) {
    out.push(b'[');
    write_elements(out, datatype, bytes);
    close(out);
}

/// Appends elements as [`write`] does, each with a comma behind it.
pub(in crate::api) fn write_elements(out: &mut Vec<u8>, datatype: DataType, bytes: &[u8]) {
    match datatype {
        DataType::Bool => list(out, bytes, |[b]: [u8; 1]| b != 0),
        DataType::Uint8 => list(out, bytes, u8::from_le_bytes),
        DataType::Uint16 => list(out, bytes, u16::from_le_bytes),
        DataType::Uint32 => list(out, bytes, u32::from_le_bytes),
        DataType::Uint64 => list(out, bytes, u64::from_le_bytes),
        DataType::Int8 => list(out, bytes, i8::from_le_bytes),
        DataType::Int16 => list(out, bytes, i16::from_le_bytes),
        DataType::Int32 => list(out, bytes, i32::from_le_bytes),
        DataType::Int64 => list(out, bytes, i64::from_le_bytes),
        DataType::Fp16 => list(out, bytes, |b| f16::from_le_bytes(b).to_f32()),
        DataType::Bf16 => list(out, bytes, |b| bf16::from_le_bytes(b).to_f32()),
        DataType::Fp32 => list(out, bytes, f32::from_le_bytes),
        DataType::Fp64 => list(out, bytes, f64::from_le_bytes),
        DataType::Bytes(most) => {
            put_all(out, elements::of(bytes, most).map(|element| String::from_utf8_lossy(element)));
        }
    }
}

/// Appends an element of BYTES, which may be long, as a JSON string with a comma behind it, in
/// slices. What is not UTF-8 becomes U+FFFD.
pub(in crate::api) async fn write_text(out: &mut Vec<u8>, element: &[u8], slices: &Slices) {
    let (mut rest, mut piece) = (element, Vec::new());
    out.push(b'"');
    while !rest.is_empty() {
        let (text, after) = rest.split_at(end_of_text(rest, PIECE));
        piece.clear();
        serde_json::to_writer(&mut piece, &String::from_utf8_lossy(text)).expect("memory takes it");
        out.extend_from_slice(&piece[1..piece.len() - 1]);
        rest = after;
        slices.did(text.len()).await;
    }
    out.extend_from_slice(b"\",");
}

/// Returns the length of a beginning of `bytes`, of about `most` bytes, that ends where a character
/// does.
fn end_of_text(bytes: &[u8], most: usize) -> usize {
    if bytes.len() <= most {
        return bytes.len();
    }
    // A character has at most three bytes behind its first. Where there are more such, they belong
    // to none.
    let is_first = |&end: &usize| bytes[end] & 0xc0 != 0x80;
    (most - 3..=most).rev().find(is_first).unwrap_or(most)
}

fn list<const N: usize, T: serde::Serialize>(
    out: &mut Vec<u8>,
    bytes: &[u8],
    element: impl Fn([u8; N]) -> T,
) {
    put_all(out, bytes.as_chunks::<N>().0.iter().map(|&value| element(value)));
}

/// Appends values as JSON, each with a comma behind it.
pub(in crate::api) fn put_all<T: serde::Serialize>(out: &mut Vec<u8>, values: impl Iterator<Item = T>) {
    for value in values {
        serde_json::to_writer(&mut *out, &value)
            .expect("numbers and strings are JSON, and memory takes them");
        out.push(b',');
    }
}

/// Ends an array, in place of the comma behind its last value.
pub(in crate::api) fn close(out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::memory::CoreMemory;
    use crate::api::net::slices::ready_now;
    use proptest::prelude::*;
    use std::rc::Rc;

    fn parsed(json: &str, datatype: DataType, shape: &[usize]) -> Result<Vec<u8>, String> {
        let memory = CoreMemory::new(1 << 20, 1 << 20).lease(&Rc::default());
        let mut bounds = ReadBounds { limit: 1 << 20, memory, slices: Slices::alone() };
        ready_now(parse(json.as_bytes(), datatype, shape, &mut bounds)).map_err(|fault| match fault {
            InputFault::Invalid(what) => what,
            InputFault::Refused(problem) => problem.message,
        })
    }

    fn written(datatype: DataType, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        write(&mut out, datatype, bytes);
        String::from_utf8(out).unwrap()
    }

    /// The elements as the text of nested arrays of `shape`.
    fn nest(elements: &[&str], shape: &[usize]) -> String {
        match shape {
            [] | [_] => format!("[{}]", elements.join(", ")),
            [first, rest @ ..] => {
                let parts = elements.chunks(elements.len() / first).map(|part| nest(part, rest));
                format!("[{}]", parts.collect::<Vec<_>>().join(",\n"))
            }
        }
    }

    #[test]
    fn flat_and_nested_data_give_the_same_bytes() {
        let flat = parsed("[1,2,3,4,5,6]", DataType::Int32, &[2, 3]);
        assert_eq!(flat, parsed(" [ [1, 2,3],\n[4,5,6 ] ] ", DataType::Int32, &[2, 3]));
        assert_eq!(flat.unwrap()[4..8], [2, 0, 0, 0]);
        assert_eq!(parsed("[7]", DataType::Uint8, &[]), Ok(vec![7]));
    }

    #[test]
    fn data_of_another_shape_is_refused() {
        for (json, shape) in [
            ("[1,2,3]", vec![4]),
            ("[1,2,3,4,5]", vec![4]),
            ("[[1,2],[3]]", vec![2, 2]),
            ("[[1,2,3],[4]]", vec![2, 2]),
            ("[[1,2],3,4]", vec![2, 2]),
            ("[1,[2,3],4]", vec![2, 2]),
            ("[[[1]],[[2]]]", vec![2]),
            ("[[[]],1,2]", vec![2]),
            ("[[],[1,2]]", vec![2]),
            ("[[1,2],[3,4]]", vec![4, 1, 1]),
            ("5", vec![1]),
            ("[]", vec![1]),
            ("\"text\"", vec![1]),
            ("{\"a\":[1]}", vec![1]),
        ] {
            assert!(parsed(json, DataType::Fp32, &shape).is_err(), "{json} as {shape:?}");
        }
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(parsed(&deep, DataType::Fp32, &[1]).is_err());
    }

    #[test]
    fn a_value_outside_its_type_is_refused_and_never_wraps() {
        for (json, datatype) in [
            ("[256]", DataType::Uint8),
            ("[-1]", DataType::Uint64),
            ("[-129]", DataType::Int8),
            ("[18446744073709551616]", DataType::Uint64),
            ("[1.5]", DataType::Int32),
            ("[1e39]", DataType::Fp32),
            ("[1e400]", DataType::Fp64),
            ("[65520]", DataType::Fp16),
            ("[1]", DataType::Bool),
            ("[true]", DataType::Uint8),
            ("[null]", DataType::Fp32),
            ("[\"1\"]", DataType::Fp32),
            ("[{}]", DataType::Fp32),
        ] {
            let error = parsed(json, datatype, &[1]).unwrap_err();
            assert!(error.contains("data[0]") && error.contains(datatype.name()), "{error}");
        }
        let largest = u64::MAX.to_string();
        assert_eq!(parsed(&format!("[{largest}]"), DataType::Uint64, &[1]).unwrap(), [255; 8]);
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for json in [
            "[1,2,]",
            "[,1,2]",
            "[1,,2]",
            "[1 2]",
            "[1,2",
            "[1,2]]",
            "[1,2],",
            "",
            "[1,2][",
            "[01,2]",
            "[+1,2]",
            "[1.,2]",
            "[.5,2]",
            "[1e,2]",
            "[inf,2]",
            "[nan,2]",
            "[Infinity,2]",
            "[1,2}",
            "[[1],[2]",
        ] {
            assert!(parsed(json, DataType::Fp32, &[2]).is_err(), "{json}");
        }
        assert!(parsed(r#"["a","b]"#, DataType::Bytes(5), &[2]).is_err());
        let long = format!("[1.{}]", "0".repeat(MAX_NUMBER));
        assert!(parsed(&long, DataType::Fp32, &[1]).is_err());
        assert!(parsed("[-0.0e+07, 12E-3]", DataType::Fp64, &[2]).is_ok());
    }

    #[test]
    fn strings_are_unescaped_and_one_that_is_too_long_is_refused() {
        let text = r#"["a,]\"\\", "", "\u00e9"]"#;
        let wire = parsed(text, DataType::Bytes(5), &[3]).unwrap();
        assert_eq!(wire, [b"\x05\0\0\0a,]\"\\".as_slice(), &[0; 4], b"\x02\0\0\0\xc3\xa9"].concat());
        let row = [b"\x02\0\0\0a\"?".as_slice(), &[0; 7], b"\x01\0\0\0\xff??"].concat();
        assert_eq!(
            written(DataType::Bytes(3), &row),
            r#"["a\"","","\ufffd"]"#.replace("\\ufffd", "\u{fffd}")
        );
        let error = parsed(r#"["abc", "abcdef"]"#, DataType::Bytes(5), &[2]).unwrap_err();
        assert!(error.contains("data[1]") && error.contains("at most 5 bytes"), "{error}");
        assert!(parsed("[1]", DataType::Bytes(5), &[1]).is_err());
    }

    #[test]
    fn a_long_text_is_written_as_if_at_once() {
        let bytes: Vec<u8> =
            "aé€😀\"\n".bytes().chain([0x80, 0xff, 0xe2, 0x82]).cycle().take(50_000).collect();
        for from in 0..20 {
            let (mut written, element) = (Vec::new(), &bytes[from..]);
            ready_now(write_text(&mut written, element, &Slices::alone()));
            let whole = serde_json::to_string(&String::from_utf8_lossy(element)).unwrap();
            assert!(written.strip_suffix(b",") == Some(whole.as_bytes()), "from byte {from}");
        }
        let lone = [b'a'; 4_094].into_iter().chain([0x80; 9]).collect::<Vec<u8>>();
        let mut written = Vec::new();
        ready_now(write_text(&mut written, &lone, &Slices::alone()));
        assert_eq!(String::from_utf8(written).unwrap().matches('\u{fffd}').count(), 9);
    }

    #[test]
    fn floats_are_written_short_and_what_json_lacks_as_null() {
        let values: Vec<u8> =
            [0.1f32, 1.0, f32::NAN, f32::INFINITY].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(written(DataType::Fp32, &values), "[0.1,1.0,null,null]");
        assert_eq!(written(DataType::Bool, &[0, 1]), "[false,true]");
    }

    fn any_tensor() -> impl Strategy<Value = (DataType, Vec<usize>, Vec<u8>)> {
        let datatype = proptest::sample::select(&DataType::ALL[..]);
        (datatype, proptest::collection::vec(1usize..5, 0..4)).prop_flat_map(|(datatype, shape)| {
            let bytes = shape.iter().product::<usize>() * datatype.size_bytes();
            (Just(datatype), Just(shape), proptest::collection::vec(any::<u8>(), bytes))
        })
    }

    proptest! {
        #[test]
        fn every_tensor_survives_its_json_flat_and_nested((datatype, shape, mut bytes) in any_tensor()) {
            if datatype == DataType::Bool {
                bytes.iter_mut().for_each(|b| *b &= 1);
            }
            let flat = written(datatype, &bytes);
            prop_assume!(!flat.contains("null"));
            prop_assert_eq!(&parsed(&flat, datatype, &shape), &Ok(bytes.clone()));
            let elements: Vec<&str> = flat.trim_matches(['[', ']']).split(',').collect();
            prop_assert_eq!(&parsed(&nest(&elements, &shape), datatype, &shape), &Ok(bytes));
        }

        #[test]
        fn any_json_is_read_or_refused_without_a_panic(
            json in "[\\[\\], 0-9truefalsn.eE+\"{}:-]{0,40}",
            shape in proptest::collection::vec(0usize..4, 0..3),
            datatype in proptest::sample::select(&DataType::ALL[..]),
        ) {
            let is_json = serde_json::from_str::<serde_json::Value>(&json).is_ok();
            prop_assert!(parsed(&json, datatype, &shape).is_err() || is_json, "{json} was read");
        }
    }
}
