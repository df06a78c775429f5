//! Text of bounded length in a frame: a host's name, or the sentence with which it closes.

use bytemuck::{Pod, Zeroable};
use std::fmt;

/// UTF-8 of at most `N` bytes, and zeros after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Makes the text of as many of the characters as there is room for, up to the first NUL.
    pub fn new(text: &str) -> Text<N> {
        let text = text.split('\0').next().unwrap_or_default();
        let length = text.floor_char_boundary(N);
        let mut bytes = [0; N];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Text(bytes)
    }

    /// Returns the text; of bytes that are no UTF-8, what comes before the first wrong one.
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        let bytes = &self.0[..length];
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }

    /// Returns the first byte that is neither UTF-8 nor a zero after it.
    pub(super) fn first_wrong_byte(&self) -> Option<u8> {
        self.0[self.as_str().len()..].iter().copied().find(|&byte| byte != 0)
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let text = Text::<4>::new("añña");
        assert_eq!((text.as_str(), text.first_wrong_byte()), ("añ", None));
        assert_eq!(Text::<4>::new("abcdef").as_str(), "abcd");
        assert_eq!(Text::<4>::new("a\0b").as_str(), "a");
    }

    #[test]
    fn bytes_that_are_no_text_are_found() {
        assert_eq!(Text([b'a', 0xff, b'b', 0]).first_wrong_byte(), Some(0xff));
        assert_eq!(Text([b'a', 0, b'b', 0]).first_wrong_byte(), Some(b'b'));
        assert_eq!(Text([0; 4]).as_str(), "");
    }
}
