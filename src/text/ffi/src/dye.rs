//! Provenance of characters through a template.
//!
//! A template is free to trim, cut, compare and join the strings it is given, so marks around user text would change
//! what it does and would not survive it. Instead each character of user text is *dyed*: replaced, one for one, by a
//! private-use character that occurs nowhere else in the input. Dyed characters stay what they are through
//! concatenation and slicing, and in the rendered text every dyed character is user text, every other one template text.
//! Operations that look at characters (trim, startswith, split, tojson, ...) are taught to look through the dye.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use crate::Fault;

const FIRST: u32 = 0xF0000; // private-use planes 15 and 16
const LAST: u32 = 0x10FFFD;

#[derive(Clone, Copy, PartialEq)]
pub enum Depth {
    /// Every character.
    Full,
    /// Only the ends of control tokens, which are all of the form `<...>`: for strings that the template compares with
    /// its own words, and for templates that look at user text in ways that do not see through the dye.
    Brackets,
}

pub struct Dye {
    dyed_ascii: [Option<char>; 128],
    dyed: HashMap<char, char>,
    plain: Vec<Option<char>>, // of the dyed character FIRST + index
    reserved: HashSet<char>,
}

impl Dye {
    /// `inputs`: all text the template will see; private-use characters in it are left out of the palette.
    pub fn new<'a>(inputs: impl Iterator<Item = &'a str>) -> Self {
        // Their first byte is F3 or F4; hardly a text has any, and looking at bytes is quick.
        let reaches = |text: &&str| text.bytes().any(|byte| byte >= 0xF3);
        let reserved = inputs.filter(reaches).flat_map(str::chars).filter(|&c| c as u32 >= FIRST).collect();
        Dye { dyed_ascii: [None; 128], dyed: HashMap::new(), plain: Vec::new(), reserved }
    }

    fn dye_char(&mut self, c: char) -> Result<char, Fault> {
        let known = if c.is_ascii() { self.dyed_ascii[c as usize] } else { self.dyed.get(&c).copied() };
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
                self.dyed_ascii[c as usize] = Some(dyed);
            } else {
                self.dyed.insert(c, dyed);
            }
            return Ok(dyed);
        }
        Err(Fault::Input("the conversation uses too many different characters".into()))
    }

    pub fn dye(&mut self, text: &str, depth: Depth) -> Result<String, Fault> {
        let mut dyed = String::with_capacity(if depth == Depth::Full { 4 * text.len() } else { text.len() });
        for c in text.chars() {
            let keep = self.is_dyed(c) || (depth == Depth::Brackets && !matches!(c, '<' | '>'));
            dyed.push(if keep { c } else { self.dye_char(c)? });
        }
        Ok(dyed)
    }

    fn undyed(&self, c: char) -> Option<char> {
        let index = (c as u32).checked_sub(FIRST)?;
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
        let mut plain = String::with_capacity(text.len() / 3);
        let mut segments: Vec<(usize, bool)> = Vec::new();
        let mut kind = None; // of the segment under way
        for c in text.chars() {
            let undyed = self.undyed(c);
            let control = undyed.is_none();
            if kind != Some(control) {
                segments.extend(kind.map(|kind| (plain.len(), kind)));
                kind = Some(control);
            }
            plain.push(undyed.unwrap_or(c));
        }
        segments.extend(kind.map(|kind| (plain.len(), kind)));
        (plain, segments)
    }
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
    current(false, |dye| text.chars().any(|c| dye.is_dyed(c)))
}

pub fn plain_char(c: char) -> char {
    current(c, |dye| dye.plain_char(c))
}

pub fn plain(text: &str) -> Cow<'_, str> {
    if !any_dyed(text) {
        return Cow::Borrowed(text);
    }
    current(Cow::Borrowed(text), |dye| Cow::Owned(text.chars().map(|c| dye.plain_char(c)).collect()))
}

/// Dyes text that was computed from user text.
pub fn redye(text: String) -> String {
    current(None, |dye| dye.dye(&text, Depth::Full).ok()).unwrap_or(text)
}
