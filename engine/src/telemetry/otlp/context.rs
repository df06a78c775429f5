//! The identity of a span and of its parent: the ids of W3C Trace Context, level 1, and the header
//! `traceparent` that carries them.

use std::fmt;

/// The id of a trace. Never all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span in a trace. Never all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(pub [u8; 8]);

/// The longest `tracestate` that is propagated, in bytes: the least that the standard asks for.
const LONGEST_STATE: usize = 512;

/// The client's span that a request belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    /// The client's trace.
    pub trace: TraceId,
    /// The client's span.
    pub span: SpanId,
    /// True if the client records the trace, which then is recorded here as well.
    pub sampled: bool,
    /// The state of other systems in the trace's context, propagated as it is; may be empty.
    pub state: Box<str>,
}

impl Parent {
    /// Reads the header `traceparent`, such as
    /// `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`, with the accompanying
    /// `tracestate`. Returns `None` if it does not follow the standard, which then counts as no
    /// header at all.
    ///
    /// ```
    /// use symphony::telemetry::otlp::Parent;
    /// let header = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let parent = Parent::parse(header, b"").unwrap();
    /// assert!(parent.sampled);
    /// assert_eq!(parent.span.to_string(), "00f067aa0ba902b7");
    /// ```
    pub fn parse(traceparent: &[u8], tracestate: &[u8]) -> Option<Parent> {
        let mut parts = traceparent.splitn(5, |&byte| byte == b'-');
        let [version] = hex(parts.next()?)?;
        let trace = hex(parts.next()?).filter(|id| *id != [0; 16])?;
        let span = hex(parts.next()?).filter(|id| *id != [0; 8])?;
        let [flags] = hex(parts.next()?)?;
        // A later version adds fields at the end; this one has none there, and 255 is no version.
        if version == 255 || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let state = std::str::from_utf8(tracestate).ok().filter(|text| {
            text.len() <= LONGEST_STATE && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        });
        let state = state.unwrap_or_default().into();
        Some(Parent { trace: TraceId(trace), span: SpanId(span), sampled: flags & 1 == 1, state })
    }
}

/// Parses exactly 2 N lower-case digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parse(text: &str) -> Option<Parent> {
        Parent::parse(text.as_bytes(), b"")
    }

    #[test]
    fn a_traceparent_says_the_trace_the_span_and_whether_to_record() {
        let parent = parse(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        assert_eq!((parent.trace.to_string(), parent.span.to_string()), (TRACE.into(), SPAN.into()));
        assert!(parent.sampled);
        assert!(!parse(&format!("00-{TRACE}-{SPAN}-00")).unwrap().sampled);
        assert!(parse(&format!("00-{TRACE}-{SPAN}-03")).unwrap().sampled, "other flags are for others");
        assert!(parse(&format!("01-{TRACE}-{SPAN}-01-what comes later")).unwrap().sampled);
    }

    #[test]
    fn what_is_not_as_the_standard_has_it_is_no_header() {
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_state_is_carried_if_it_is_short_and_plain() {
        let header = format!("00-{TRACE}-{SPAN}-01");
        let state = |state: &[u8]| Parent::parse(header.as_bytes(), state).unwrap().state;
        assert_eq!(&*state(b"vendor=1,other=2"), "vendor=1,other=2");
        assert_eq!(&*state(&[b'x'; 513]), "");
        assert_eq!(&*state(b"a=\n"), "");
        assert_eq!(&*state(&[0xff]), "");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(header in proptest::collection::vec(any::<u8>(), 0..80)) {
            Parent::parse(&header, &header);
        }
    }
}
