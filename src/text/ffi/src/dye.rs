//! Provenance of characters through a template.
//!
//! A template is free to trim, cut, compare and join the strings it is given, so marks around user text would change
//! what it does and would not survive it. Instead each character of user text is *dyed*: replaced, one for one, by a
//! character that occurs nowhere in the input. Dyed characters stay what they are through concatenation and slicing, and
//! in the rendered text every dyed character is user text, every other one template text. Operations that look at
//! characters (trim, startswith, split, tojson, ...) are taught to look through the dye.
//!
//! A conversation is mostly ASCII, and every request is dyed and read back: ASCII becomes the two-byte characters from
//! U+0780 on (Thaana, N'Ko) where the input has none of those, which takes half the bytes and no tables. All else, and
//! ASCII beside such an input, gets characters of the private-use planes as they come.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use crate::Fault;

const FIRST: u32 = 0xF0000; // private-use planes 15 and 16
const LAST: u32 = 0x10FFFD;
const FIRST_ASCII: u32 = 0x780; // its 128 characters are DE 80 .. DF BF, and no others begin with those bytes

fn begins_dyed_ascii(byte: u8) -> bool {
    byte & 0xFE == 0xDE
}
fn dyed_ascii(byte: u8) -> char {
    char::from_u32(FIRST_ASCII + u32::from(byte & 0x7F)).unwrap_or_default()
}
fn plain_ascii(dyed: &[u8]) -> char {
    char::from((dyed[0] & 1) << 6 | dyed[1] & 0x3F)
}

#[derive(Clone, Copy, PartialEq)]
pub enum Depth {
    /// Every character.
    Full,
    /// Only the ends of control tokens, which are all of the form `<...>`: for strings that the template compares with
    /// its own words, and for templates that look at user text in ways that do not see through the dye.
    Brackets,
}

pub struct Dye {
    short_ascii: bool,
    ascii: [Option<char>; 128], // where it is not short
    dyed: HashMap<char, char>,
    plain: Vec<Option<char>>, // of the dyed character FIRST + index
    reserved: HashSet<char>,
}

impl Dye {
    /// `inputs`: all text the template will see; what it has of the palette's characters is left out of it.
    pub fn new<'a>(inputs: impl Iterator<Item = &'a str>) -> Self {
        // Their first byte is F3 or F4; hardly a text has any, and looking at bytes is quick.
        let (mut short_ascii, mut reserved) = (true, HashSet::new());
        for text in inputs.filter(|text| !text.is_ascii()) {
            short_ascii = short_ascii && !text.bytes().any(begins_dyed_ascii);
            if text.bytes().any(|byte| byte >= 0xF3) {
                reserved.extend(text.chars().filter(|&c| c as u32 >= FIRST));
            }
        }
        Dye { short_ascii, ascii: [None; 128], dyed: HashMap::new(), plain: Vec::new(), reserved }
    }

    fn dye_char(&mut self, c: char) -> Result<char, Fault> {
        let known = if c.is_ascii() { self.ascii[c as usize] } else { self.dyed.get(&c).copied() };
        if let Some(dyed) = known {
            return Ok(dyed);
        }
        while let code @ ..=LAST = FIRST + self.plain.len() as u32 {
            // The last two of each plane are no characters.
            let free = |c: &char| code & 0xFFFE != 0xFFFE && !self.reserved.contains(c);
            let Some(dyed) = char::from_u32(code).filter(free) else {
                self.plain.push(None);
                continue;
            };
            self.plain.push(Some(c));
            if c.is_ascii() {
                self.ascii[c as usize] = Some(dyed);
            } else {
                self.dyed.insert(c, dyed);
            }
            return Ok(dyed);
        }
        Err(Fault::Input("the conversation uses too many different characters".into()))
    }

    pub fn dye(&mut self, text: &str, depth: Depth) -> Result<String, Fault> {
        let all = depth == Depth::Full;
        let goes = |c: char| all || matches!(c, '<' | '>');
        let mut dyed = String::with_capacity(if all { 2 * text.len() } else { text.len() });
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if c.is_ascii() && self.short_ascii {
                let run = rest.bytes().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
                let dye = |byte| if goes(char::from(byte)) { dyed_ascii(byte) } else { char::from(byte) };
                dyed.extend(rest[..run].bytes().map(dye));
                rest = &rest[run..];
            } else {
                dyed.push(if self.is_dyed(c) || !goes(c) { c } else { self.dye_char(c)? });
                rest = &rest[c.len_utf8()..];
            }
        }
        Ok(dyed)
    }

    fn undyed(&self, c: char) -> Option<char> {
        let code = c as u32;
        if self.short_ascii && (FIRST_ASCII..FIRST_ASCII + 128).contains(&code) {
            return char::from_u32(code - FIRST_ASCII);
        }
        let index = code.checked_sub(FIRST)?;
        self.plain.get(index as usize).copied().flatten()
    }

    pub fn is_dyed(&self, c: char) -> bool {
        self.undyed(c).is_some()
    }

    pub fn plain_char(&self, c: char) -> char {
        self.undyed(c).unwrap_or(c)
    }

    /// The plain text, and where it changes hands: (end, is template text).
    pub fn strip(&self, text: &str) -> (String, Vec<(usize, bool)>) {
        let mut plain = String::with_capacity(text.len() / 2);
        let mut segments: Vec<(usize, bool)> = Vec::new();
        let mut kind = None; // of the segment under way
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let undyed = self.undyed(c);
            let control = undyed.is_none();
            if kind != Some(control) {
                segments.extend(kind.map(|kind| (plain.len(), kind)));
                kind = Some(control);
            }
            plain.push(undyed.unwrap_or(c));
            rest = &rest[c.len_utf8()..];
            if self.short_ascii && !control {
                rest = push_plain_ascii(rest, &mut plain);
            }
        }
        segments.extend(kind.map(|kind| (plain.len(), kind)));
        (plain, segments)
    }

    fn any_dyed(&self, text: &str) -> bool {
        text.chars().any(|c| self.is_dyed(c))
    }

    pub fn plain<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.any_dyed(text) { Cow::Owned(self.strip(text).0) } else { Cow::Borrowed(text) }
    }
}

/// Reads back the dyed ASCII that a text begins with; what is behind it.
fn push_plain_ascii<'a>(text: &'a str, plain: &mut String) -> &'a str {
    let length = text.as_bytes().chunks_exact(2).take_while(|pair| begins_dyed_ascii(pair[0])).count() * 2;
    plain.extend(text.as_bytes()[..length].chunks_exact(2).map(plain_ascii));
    &text[length..]
}

// Filters and methods are plain functions of the template engine; the dye of the rendering in progress is the thread's.
thread_local! {
    static CURRENT: RefCell<Option<Dye>> = const { RefCell::new(None) };
}

/// Runs `body` with `dye` in force and gives the dye back.
pub fn with_dye<T>(dye: Dye, body: impl FnOnce() -> T) -> (T, Dye) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            CURRENT.with(|current| current.borrow_mut().take());
        }
    }
    CURRENT.with(|current| *current.borrow_mut() = Some(dye));
    let reset = Reset;
    let result = body();
    let dye = CURRENT.with(|current| current.borrow_mut().take()).expect("the dye is in force");
    drop(reset);
    (result, dye)
}

fn current<T>(without: T, with: impl FnOnce(&mut Dye) -> T) -> T {
    CURRENT.with(|current| current.borrow_mut().as_mut().map_or(without, with))
}

/// Does any character carry dye?
pub fn any_dyed(text: &str) -> bool {
    current(false, |dye| dye.any_dyed(text))
}

pub fn plain_char(c: char) -> char {
    current(c, |dye| dye.plain_char(c))
}

pub fn plain(text: &str) -> Cow<'_, str> {
    current(Cow::Borrowed(text), |dye| dye.plain(text))
}

/// Dyes text that was computed from user text.
pub fn redye(text: String) -> String {
    current(None, |dye| dye.dye(&text, Depth::Full).ok()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ascii() -> String {
        (0..128u8).map(char::from).collect()
    }

    #[test]
    fn what_was_dyed_reads_back_as_user_text() {
        // Short dye; beside its own characters in the input, and beside private-use ones.
        for other in ["", "\u{780}\u{7bf}", "\u{7c0}\u{7ff}", "\u{f0000}\u{10fffd}\u{f0041}"] {
            for user in
                [ascii(), format!("{}é你{}🙂{}", ascii(), ascii(), ascii()), format!("<{other}>"), String::new()]
            {
                let mut dye = Dye::new([user.as_str(), other, "<|im_start|>"].into_iter());
                assert_eq!(dye.short_ascii, !format!("{other}{user}").bytes().any(begins_dyed_ascii));
                let dyed = dye.dye(&user, Depth::Full).ok().unwrap();
                assert_eq!(dyed.chars().count(), user.chars().count());
                assert!(dyed.chars().all(|c| dye.is_dyed(c) && !user.contains(c) && !other.contains(c)));
                assert_eq!(dye.dye(&dyed, Depth::Full).ok().unwrap(), dyed, "dyed twice");
                assert_eq!(dye.plain(&dyed), user);
                let (text, segments) = dye.strip(&format!("<|im_start|>{dyed}{other}"));
                assert_eq!(text, format!("<|im_start|>{user}{other}"));
                let (begin, end) = ("<|im_start|>".len(), "<|im_start|>".len() + user.len());
                let whole = vec![(begin, true), (end, false), (text.len(), true)];
                let expected = match (user.is_empty(), other.is_empty()) {
                    (true, _) => vec![(text.len(), true)],
                    (_, true) => whole[..2].to_vec(),
                    _ => whole,
                };
                assert_eq!(segments, expected);
            }
        }
    }

    #[test]
    fn brackets_alone() {
        for other in ["", "\u{780}"] {
            let user = "a <b> é <c>";
            let mut dye = Dye::new([user, other].into_iter());
            let dyed = dye.dye(user, Depth::Brackets).ok().unwrap();
            let kept: String = dyed.chars().filter(|&c| !dye.is_dyed(c)).collect();
            assert_eq!(kept, "a b é c");
            assert_eq!(dye.plain(&dyed), user);
        }
    }
}
