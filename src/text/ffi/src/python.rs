//! What templates written for Jinja2 expect of Python: string methods, str(), json.dumps, strftime. All of it looks
//! through the dye (dye.rs): it works on the plain characters and gives out the dyed ones.

use std::fmt::Write;
use std::ops::Range;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::dye::{any_dyed, plain, plain_char, redye};

/// str.isspace, which counts the four separators U+001C..U+001F that Unicode's White_Space leaves out.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

pub fn strip<'a>(text: &'a str, set: Option<&str>, left: bool, right: bool) -> &'a str {
    let set: Option<String> = set.map(|set| plain(set).into_owned());
    let goes = |c: char| {
        let c = plain_char(c);
        set.as_ref().map_or(is_space(c), |set| set.contains(c))
    };
    // From both ends, because a text may be a whole conversation's.
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

fn by_chars(text: &str, range: Range<usize>) -> &str {
    let offset = |count: usize| text.char_indices().nth(count).map_or(text.len(), |(offset, _)| offset);
    &text[offset(range.start)..offset(range.end)]
}

/// Whether a dyed text has a plain affix. The ends alone are read, because a text may be a whole conversation's.
fn begins_with(text: &str, affix: &str) -> bool {
    let mut chars = text.chars().map(plain_char);
    affix.chars().all(|c| chars.next() == Some(c))
}
fn ends_with(text: &str, affix: &str) -> bool {
    let mut chars = text.chars().rev().map(plain_char);
    affix.chars().rev().all(|c| chars.next() == Some(c))
}

/// str.split: the pieces are cut out of the dyed text where the plain text splits.
fn split(text: &str, separator: Option<&str>, at_most: Option<i64>) -> Vec<Value> {
    let plain_text = plain(text);
    let limit = at_most.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let offset_of = |piece: &str| piece.as_ptr() as usize - plain_text.as_ptr() as usize;
    let pieces: Vec<&str> = match separator {
        Some(separator) => plain_text.splitn(limit, plain(separator).as_ref()).collect(),
        None if limit == usize::MAX => plain_text.split(is_space).filter(|piece| !piece.is_empty()).collect(),
        None => {
            let mut rest = plain_text.trim_start_matches(is_space);
            let mut pieces = Vec::new();
            while !rest.is_empty() && pieces.len() + 1 < limit {
                let end = rest.find(is_space).unwrap_or(rest.len());
                pieces.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            if !rest.is_empty() {
                pieces.push(rest);
            }
            pieces
        }
    };
    // Pieces come in order, so both texts are walked once.
    let (mut plain_at, mut at) = (0, 0);
    let mut walk = |to: usize| {
        let chars = plain_text[plain_at..to].chars().count();
        at += by_chars(&text[at..], 0..chars).len();
        plain_at = to;
        at
    };
    let mut cut = |piece: &&str| {
        let begin = walk(offset_of(piece));
        let end = walk(offset_of(piece) + piece.len());
        Value::from(&text[begin..end])
    };
    pieces.iter().map(&mut cut).collect()
}

/// `item in container`.
pub fn contains(container: &Value, item: &Value) -> bool {
    match container.kind() {
        ValueKind::String => {
            plain(container.as_str().unwrap_or_default()).contains(plain(item.as_str().unwrap_or_default()).as_ref())
        }
        ValueKind::Map => container.get_item(item).is_ok_and(|value| !value.is_undefined()),
        ValueKind::Seq | ValueKind::Iterable => container.try_iter().is_ok_and(|mut items| items.any(|v| v == *item)),
        _ => false,
    }
}

fn text_argument(args: &[Value], index: usize) -> Option<&str> {
    args.get(index).and_then(Value::as_str)
}

/// Methods of strings, lists and mappings.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    let first = text_argument(args, 0);
    match name {
        "strip" => return Ok(strip(text, first, true, true).into()),
        "lstrip" => return Ok(strip(text, first, true, false).into()),
        "rstrip" => return Ok(strip(text, first, false, true).into()),
        "split" => return Ok(split(text, first, args.get(1).and_then(Value::as_i64)).into()),
        "removeprefix" | "removesuffix" => {
            let affix = plain(first.unwrap_or_default()).into_owned();
            let (all, cut) = (text.chars().count(), affix.chars().count());
            return Ok(match name {
                "removeprefix" if begins_with(text, &affix) => by_chars(text, cut..all).into(),
                "removesuffix" if ends_with(text, &affix) => by_chars(text, 0..all - cut).into(),
                _ => value.clone(),
            });
        }
        "startswith" | "endswith" if args.len() == 1 && first.is_some() => {
            let affix = plain(first.unwrap_or_default());
            return Ok((if name == "startswith" { begins_with } else { ends_with })(text, &affix).into());
        }
        _ => {}
    }
    let compares = matches!(name, "startswith" | "endswith" | "find" | "rfind" | "count");
    let dyed = any_dyed(text);
    if !dyed && !compares {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    }
    let receiver = Value::from(plain(text).into_owned());
    let args: Vec<Value> = args.iter().map(without_dye).collect();
    let result = minijinja_contrib::pycompat::unknown_method_callback(state, &receiver, name, &args)?;
    Ok(if dyed { with_dye(&result) } else { result })
}

fn without_dye(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => plain(value.as_str().unwrap_or_default()).into_owned().into(),
        ValueKind::Seq => value.try_iter().map_or(value.clone(), |items| items.map(|v| without_dye(&v)).collect()),
        _ => value.clone(),
    }
}

fn with_dye(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => redye(value.as_str().unwrap_or_default().to_string()).into(),
        ValueKind::Seq => value.try_iter().map_or(value.clone(), |items| items.map(|v| with_dye(&v)).collect()),
        _ => value.clone(),
    }
}

/// repr() of a float: the shortest digits that read back, exponents below -4 and from 16 on.
pub fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = format!("{number}");
        return if text.contains('.') { text } else { text + ".0" };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// str() of a scalar; None for what needs no help of ours.
pub fn scalar_text(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { "True".into() } else { "False".into() }),
        ValueKind::None => Some("None".into()),
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(float_text),
        _ => None,
    }
}

struct Dumps {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
    dyed: bool,
    out: String,
}

impl Dumps {
    fn string(&mut self, text: &str) {
        self.dyed |= any_dyed(text);
        self.out.push('"');
        for c in plain(text).chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && c as u32 > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn group(
        &mut self,
        brackets: (char, char),
        depth: usize,
        items: Vec<Value>,
        mut item: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets.0);
        for (index, value) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item_separator.clone());
            }
            self.new_line(depth + 1);
            item(self, value)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.out.push(brackets.1);
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Number => match scalar_text(value) {
                Some(text) => self.out.push_str(&text),
                None => self.out.push_str(&value.to_string()),
            },
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort_by_cached_key(|key| plain(&key.to_string()).into_owned());
                }
                self.group(('{', '}'), depth, keys, |dumps, key| {
                    dumps.string(&key.to_string());
                    dumps.out.push_str(&dumps.key_separator.clone());
                    dumps.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(('[', ']'), depth, items, |dumps, item| dumps.value(item, depth + 1))?;
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("a {kind} is not JSON serializable")));
            }
        }
        Ok(())
    }
}

/// The filter tojson: json.dumps(value, ensure_ascii=False) with its separators and without HTML escapes. The text of a
/// value with user text in it is user text as a whole.
pub fn tojson(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?);
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut dumps =
        Dumps { indent, item_separator, key_separator, ensure_ascii, sort_keys, dyed: false, out: String::new() };
    dumps.value(value, 0)?;
    Ok(if dumps.dyed { redye(dumps.out) } else { dumps.out }.into())
}

/// strftime_now(format), in UTC.
pub fn strftime(format: &str, unix_seconds: i64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (unix_seconds.div_euclid(86_400), unix_seconds.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[days.rem_euclid(7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year:04}"),
            Some('y') => write!(out, "{:02}", year.rem_euclid(100)),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{:02}", second % 60),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", &day_name[..3]),
            Some('j') => write!(out, "{:03}", days - days_of_year_start(year) + 1),
            Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => write!(out, "UTC"),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

/// Gregorian date of a day counted from 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_of_year_start(year: i64) -> i64 {
    let before = year - 1;
    365 * (year - 1970) + (before / 4 - 492) - (before / 100 - 19) + (before / 400 - 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
            (1.25e-7, "1.25e-07"),
        ];
        for (number, text) in cases {
            assert_eq!(float_text(number), text);
        }
    }

    #[test]
    fn dates() {
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %A %j", 0), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(strftime("%d %b %Y %I:%M %p %a %j", 1_709_210_096), "29 Feb 2024 12:34 PM Thu 060");
        assert_eq!(strftime("%F %T %y%%", 4_102_444_799), "2099-12-31 23:59:59 99%");
    }
}
