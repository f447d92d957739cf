//! Chat templates (Jinja2 as Hugging Face runs it) through the crate minijinja, rendered so that user text and template
//! text can be told apart (dye.rs).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};
use serde_json::Value as Json;

use crate::Fault;
use crate::dye::{Depth, Dye, plain, with_dye};
use crate::python;

const NAME: &str = "chat template";
const ADD_REPLY: &str = "add_generation_prompt";

pub struct Template {
    environment: Environment<'static>,
    constants: Json,
    source: String,
    /// Whether the generation prompt is asked for in conditions only.
    asks_plainly: bool,
}

pub struct Rendered {
    pub text: String,
    /// (end in `text`, is template text)
    pub segments: Vec<(usize, bool)>,
    pub reply_start: usize,
}

/// Marks errors that the template itself raised: their text is the template author's.
#[derive(Debug)]
struct Raised;
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised by the template")
    }
}
impl std::error::Error for Raised {}

impl Template {
    pub fn compile(source: &str, constants: &str) -> Result<Self, Fault> {
        let constants: Json =
            serde_json::from_str(constants).map_err(|error| Fault::Internal(format!("template constants: {error}")))?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Fault::Internal(error.to_string()))?);
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|out, state, value| match python::scalar_text(value) {
            Some(text) => escape_formatter(out, state, &text.into()),
            None => escape_formatter(out, state, value),
        });
        add_functions(&mut environment);
        add_filters(&mut environment);
        environment.add_template_owned(NAME, visible_containment(source)).map_err(|error| {
            let line = error.line().unwrap_or(0);
            Fault::Input(format!("line {line}: {}", error.detail().unwrap_or(&error.kind().to_string())))
        })?;
        Ok(Template { environment, constants, source: source.to_string(), asks_plainly: asks_plainly(source) })
    }

    pub fn render_plain(&self, input: &str) -> Result<String, Fault> {
        self.run(self.context(&parse(input)?, None, true.into())?)
    }

    pub fn render(&self, input: &str) -> Result<Rendered, Fault> {
        let input = parse(input)?;
        let (text, reply_start) = self.run_with_reply(&input)?;
        for depth in [Depth::Full, Depth::Brackets] {
            if let Ok((dyed_text, segments)) = self.run_dyed(&input, depth, true) {
                if dyed_text == text {
                    return Ok(cut_at(text, segments, reply_start));
                }
            }
        }
        // The template looks at user text by means that do not see through the dye, and decides otherwise for dyed text.
        // Safety first: it gets user text whose control tokens it cannot recognise.
        let (text, segments) = self.run_dyed(&input, Depth::Brackets, true)?;
        let without_reply = self.run_dyed(&input, Depth::Brackets, false).map(|(text, _)| text).unwrap_or_default();
        let reply_start = common(&text, &without_reply);
        Ok(cut_at(text, segments, reply_start))
    }

    /// The text, and where the generation prompt starts in it.
    fn run_with_reply(&self, input: &Json) -> Result<(String, usize), Fault> {
        let (text, reply_start) = if self.asks_plainly {
            self.run_asked(input)?
        } else {
            (self.run(self.context(input, None, true.into())?)?, None)
        };
        let reply_start = match reply_start {
            Some(known) => known,
            None => common(&text, &self.run(self.context(input, None, false.into())?).unwrap_or_default()),
        };
        Ok((text, reply_start))
    }

    /// The same in one go: what stands before the template asks for the generation prompt is the same without it. Where
    /// it asks more than once, only the text.
    fn run_asked(&self, input: &Json) -> Result<(String, Option<usize>), Fault> {
        let reply = Arc::new(Reply::default());
        let context = self.context(input, None, Value::from_dyn_object(reply.clone()))?;
        let mut text = Vec::new();
        let written = self.template()?.render_captured_to(context, Written { text: &mut text, reply: &reply });
        written.map_err(|error| Fault::Input(describe(&error)))?;
        let text = String::from_utf8(text).map_err(|error| Fault::Internal(error.to_string()))?;
        let reply_start = match reply.asked.load(Ordering::Relaxed) {
            0 => Some(text.len()),
            1 => Some(reply.first_at.load(Ordering::Relaxed)),
            _ => None,
        };
        Ok((text, reply_start))
    }

    fn template(&self) -> Result<minijinja::Template<'_, '_>, Fault> {
        self.environment.get_template(NAME).map_err(|error| Fault::Internal(error.to_string()))
    }

    fn run(&self, context: Value) -> Result<String, Fault> {
        self.template()?.render(context).map_err(|error| Fault::Input(describe(&error)))
    }

    fn run_dyed(&self, input: &Json, depth: Depth, reply: bool) -> Result<(String, Vec<(usize, bool)>), Fault> {
        let mut strings = vec![self.source.as_str()];
        collect_strings(input, &mut strings);
        collect_strings(&self.constants, &mut strings);
        let mut dye = Dye::new(strings.into_iter());
        let context = self.context(input, Some((&mut dye, depth)), reply.into())?;
        let (dyed_text, dye) = with_dye(dye, || self.run(context));
        Ok(dye.strip(&dyed_text?))
    }

    fn context(&self, input: &Json, mut dye: Option<(&mut Dye, Depth)>, reply: Value) -> Result<Value, Fault> {
        let mut pairs: Vec<(String, Value)> = Vec::new();
        for (name, value) in members(&self.constants) {
            pairs.push((name.clone(), convert(value, &mut None, Place::Constant)?));
        }
        for (name, value) in members(&input["variables"]) {
            pairs.push((name.clone(), convert(value, &mut dye, Place::Variable)?));
        }
        let has_tools = input["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        let tools = if has_tools { convert(&input["tools"], &mut dye, Place::Conversation)? } else { Value::from(()) };
        pairs.push(("messages".into(), convert(&input["messages"], &mut dye, Place::Conversation)?));
        pairs.push(("tools".into(), tools));
        pairs.push((ADD_REPLY.into(), reply));
        Ok(Value::from_pairs(pairs))
    }
}

fn parse(input: &str) -> Result<Json, Fault> {
    serde_json::from_str(input).map_err(|error| Fault::Input(error.to_string()))
}

fn members(object: &Json) -> impl Iterator<Item = (&String, &Json)> {
    object.as_object().into_iter().flatten()
}

fn collect_strings<'a>(value: &'a Json, strings: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => strings.push(text),
        Json::Array(items) => items.iter().for_each(|item| collect_strings(item, strings)),
        Json::Object(object) => object.iter().for_each(|(key, item)| {
            strings.push(key);
            collect_strings(item, strings);
        }),
        _ => {}
    }
}

/// Where a value stands, which decides how its strings are dyed.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Constant,
    /// A template variable: the template compares it with its own words.
    Variable,
    /// messages and tools; member names are the template's vocabulary.
    Conversation,
    /// Within `arguments`, `properties` and the like, where member names are user text too.
    UserNames,
}

fn convert(value: &Json, dye: &mut Option<(&mut Dye, Depth)>, place: Place) -> Result<Value, Fault> {
    Ok(match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (_, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(dyed(text, dye, place)?),
        Json::Array(items) => {
            Value::from(items.iter().map(|item| convert(item, dye, place)).collect::<Result<Vec<_>, _>>()?)
        }
        Json::Object(object) => {
            let mut pairs = Vec::with_capacity(object.len());
            for (key, item) in object {
                let inner = match (place, key.as_str()) {
                    (Place::Conversation, "role" | "type") => Place::Variable,
                    (Place::Conversation, "arguments" | "properties" | "$defs" | "definitions") => Place::UserNames,
                    _ => place,
                };
                let name = if place == Place::UserNames { dyed(key, dye, place)? } else { key.clone() };
                pairs.push((name, convert(item, dye, inner)?));
            }
            Value::from_pairs(pairs)
        }
    })
}

fn dyed(text: &str, dye: &mut Option<(&mut Dye, Depth)>, place: Place) -> Result<String, Fault> {
    match dye {
        Some((dye, depth)) if place != Place::Constant => {
            dye.dye(text, if place == Place::Variable { Depth::Brackets } else { *depth })
        }
        _ => Ok(text.to_string()),
    }
}

/// `add_generation_prompt` as a value that is true and knows where in the text it was first asked.
#[derive(Debug, Default)]
struct Reply {
    written: AtomicUsize,
    first_at: AtomicUsize,
    asked: AtomicUsize,
}

impl Object for Reply {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn is_true(self: &Arc<Self>) -> bool {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first_at.store(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        true
    }
}

struct Written<'a> {
    text: &'a mut Vec<u8>,
    reply: &'a Reply,
}

impl io::Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        self.reply.written.store(self.text.len(), Ordering::Relaxed);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a template's only use of `add_generation_prompt` is as a name among others in `if` and `elif`: conditions
/// that compare, call or index are not looked into.
fn asks_plainly(source: &str) -> bool {
    source.match_indices(ADD_REPLY).all(|(at, _)| {
        let Some(begin) = source[..at].rfind("{%") else { return false };
        let Some(length) = source[begin..].find("%}") else { return false };
        let words: Vec<&str> = source[begin + 2..begin + length].trim_matches('-').split_whitespace().collect();
        let name = |word: &&str| word.chars().all(|c| c.is_alphanumeric() || c == '_');
        let plain = words.iter().skip(1).all(name) && !words.iter().any(|word| ["is", "in"].contains(word));
        begin + length > at && plain && words.first().is_some_and(|word| ["if", "elif"].contains(word))
    })
}

/// What two texts begin with alike, in whole characters: the generation prompt is what asking for it adds at the end.
fn common(text: &str, without_reply: &str) -> usize {
    let same = text.bytes().zip(without_reply.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|&offset| text.is_char_boundary(offset)).unwrap_or(0)
}

fn cut_at(text: String, segments: Vec<(usize, bool)>, reply_start: usize) -> Rendered {
    let mut cut = Vec::with_capacity(segments.len() + 1);
    let mut begin = 0;
    for (end, control) in segments {
        if begin < reply_start && reply_start < end {
            cut.push((reply_start, control));
        }
        cut.push((end, control));
        begin = end;
    }
    Rendered { text, segments: cut, reply_start }
}

fn describe(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        let next = current.source();
        if next.is_some_and(|source| source.is::<Raised>()) {
            let raised = current.downcast_ref::<Error>().and_then(Error::detail).unwrap_or_default();
            return format!("the chat template refuses this conversation: {raised}");
        }
        cause = next;
    }
    // Details of the engine's own errors may quote values, and those are prompt text.
    format!("the chat template failed at line {}: {}", error.line().unwrap_or(0), error.kind())
}

fn add_functions(environment: &mut Environment) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        python::strftime(&format, now)
    });
    environment.add_function(CONTAINS, |container: &Value, item: &Value| python::contains(container, item));
}

fn add_filters(environment: &mut Environment) {
    environment.add_filter("tojson", |value: &Value, indent: Option<usize>, kwargs: Kwargs| {
        python::tojson(value, indent, kwargs)
    });
    environment.add_filter("trim", |state: &mut State, value: &Value, set: Option<String>| match value.as_str() {
        Some(_) => python::method(state, value, "strip", &set.into_iter().map(Value::from).collect::<Vec<_>>()),
        None => Ok(python::scalar_text(value).unwrap_or_else(|| value.to_string().trim().to_string()).into()),
    });
    environment.add_filter("string", |value: &Value| match value.as_str() {
        Some(_) => value.clone(),
        None => python::scalar_text(value).unwrap_or_else(|| value.to_string()).into(),
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        environment.add_filter(name, move |state: &mut State, value: &Value| python::method(state, value, name, &[]));
    }
    environment.add_filter("replace", |state: &mut State, value: &Value, from: Value, to: Value| {
        python::method(state, value, "replace", &[from, to])
    });
    environment.add_filter("split", |state: &mut State, value: &Value, separator: Option<Value>, most: Option<i64>| {
        let separator = separator.unwrap_or(Value::from(()));
        python::method(state, value, "split", &[separator, most.unwrap_or(-1).into()])
    });
    environment.add_filter("int", |value: &Value, default: Option<i64>| {
        let number = value.as_str().and_then(|text| plain(text).trim().parse::<i64>().ok());
        number.or_else(|| f64::try_from(value.clone()).ok().map(|f| f as i64)).unwrap_or(default.unwrap_or(0))
    });
    for (name, method) in [("startingwith", "startswith"), ("endingwith", "endswith")] {
        environment.add_test(name, move |state: &mut State, value: &Value, affix: Value| {
            python::method(state, value, method, &[affix]).is_ok_and(|answer| answer.is_true())
        });
    }
}

fn raise_exception(state: &mut State, message: &Value) -> Result<Value, Error> {
    let message = plain(&message.to_string()).into_owned();
    match later_system_turn(state, &message) {
        Some(turn) => Ok(turn),
        None => Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised)),
    }
}

/// The published templates of the family refuse a system message that is not the first; agents send such messages all
/// the time. Instead of failing, it becomes a system turn in its place: moving it to the front would change the
/// conversation's prefix and void its cache.
fn later_system_turn(state: &mut State, refusal: &str) -> Option<Value> {
    let refusal = refusal.to_lowercase();
    if !refusal.contains("system message") || !(refusal.contains("beginning") || refusal.contains("first")) {
        return None;
    }
    let message = state.lookup("message")?;
    if message.get_attr("role").ok()?.as_str()? != "system" {
        return None;
    }
    let content = match state.lookup("content") {
        Some(content) if content.as_str().is_some() => content,
        _ => message.get_attr("content").ok()?,
    };
    let content = python::strip(content.as_str()?, None, true, true);
    Some(if content.is_empty() { "".into() } else { format!("<|im_start|>system\n{content}<|im_end|>\n").into() })
}

const CONTAINS: &str = "__contains";

/// The operator `in` cannot be taught to look through the dye, a function can: `'<tag>' in name.attribute` becomes
/// `__contains(name.attribute, '<tag>')`. Only that form is rewritten, with a bracket in the string and where the operand
/// ends right after; everything else keeps the operator.
fn visible_containment(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = ["{{", "{%"].iter().filter_map(|open| rest.find(open)).min() {
        let close = if rest[begin..].starts_with("{{") { "}}" } else { "%}" };
        let end = rest[begin..].find(close).map_or(rest.len(), |length| begin + length);
        out.push_str(&rest[..begin]);
        rewrite_tag(&rest[begin..end], &mut out);
        rest = &rest[end..];
    }
    out + rest
}

fn rewrite_tag(tag: &str, out: &mut String) {
    let mut rest = tag;
    while let Some(begin) = rest.find(['\'', '"']) {
        let quote = rest[begin..].chars().next().unwrap_or('\'');
        let Some(length) = string_length(&rest[begin..], quote) else { break };
        let (literal, after) = rest[begin..].split_at(length);
        out.push_str(&rest[..begin]);
        match containment(literal, after) {
            Some((rewritten, used)) => {
                out.push_str(&rewritten);
                rest = &after[used..];
            }
            None => {
                out.push_str(literal);
                rest = after;
            }
        }
    }
    out.push_str(rest);
}

/// Bytes of the string literal at the start of `text`, both quotes included.
fn string_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (offset, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return Some(offset + 1);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

fn containment(literal: &str, after: &str) -> Option<(String, usize)> {
    if !literal.contains(['<', '>']) {
        return None;
    }
    let word = |text: &str, word: &str| -> Option<usize> {
        let trimmed = text.trim_start();
        let skipped = text.len() - trimmed.len();
        let found = skipped > 0 && trimmed.starts_with(word) && trimmed[word.len()..].starts_with(char::is_whitespace);
        found.then_some(skipped + word.len())
    };
    let negated = word(after, "not");
    let at = negated.unwrap_or(0);
    let at = at + word(&after[at..], "in")?;
    let operand = after[at..].trim_start();
    let length = operand.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(operand.len());
    let follow = operand[length..].trim_start().trim_start_matches('-');
    let ends = follow.is_empty() || follow.starts_with([')', ',', ']']);
    let joined = ["and", "or", "else", "if"].iter().any(|joint| word(&operand[length..], joint).is_some());
    if length == 0 || !(ends || joined) {
        return None;
    }
    let not = if negated.is_some() { "not " } else { "" };
    let used = after.len() - operand.len() + length;
    Some((format!("({not}{CONTAINS}({}, {literal}))", &operand[..length]), used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(length: usize) -> Json {
        let message = |i: usize| match i % 3 {
            0 => serde_json::json!({"role": "user", "content": format!("<|im_start|>é {i}")}),
            1 => serde_json::json!({"role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"a": i}}}]}),
            _ => serde_json::json!({"role": "tool", "content": "<think>"}),
        };
        let messages: Vec<Json> = (0..length).map(message).collect();
        serde_json::json!({"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}],
                           "variables": {}})
    }

    #[test]
    fn the_reply_starts_where_both_renderings_part() {
        let published = ["35", "38"].map(|version| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata");
            std::fs::read_to_string(format!("{folder}/chat_template_{version}.jinja")).unwrap()
        });
        let turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
        let ends = [
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            "{%- if add_generation_prompt and not absent -%} é<assistant> {%- endif %}\n",
            "{% if absent %}no{% elif add_generation_prompt %}<assistant>{% else %}end{% endif %}",
            "{% if absent and add_generation_prompt %}<assistant>{% endif %}end",
            "",
        ];
        let others = [
            "{% if add_generation_prompt == true %}<assistant>{% endif %}",
            "{{ '<assistant>' if add_generation_prompt }}",
            "{% set asked = add_generation_prompt %}{% if asked %}<assistant>{% endif %}",
            "{{ add_generation_prompt }}",
            "{% if add_generation_prompt is defined and add_generation_prompt %}<assistant>{% endif %}",
            "{% if messages[0].x or add_generation_prompt %}<assistant>{% endif %}",
        ];
        let twice = "{% if add_generation_prompt %}{% endif %}";
        let plain = published.into_iter().chain(ends.map(|end| turns.to_string() + end));
        let fallback = others.map(|end| (turns.to_string() + end, false));
        let asked_twice = (twice.to_string() + turns + ends[0], true);
        for (source, plainly) in plain.map(|source| (source, true)).chain(fallback).chain([asked_twice]) {
            let template = Template::compile(&source, "{}").ok().unwrap();
            assert_eq!(template.asks_plainly, plainly, "{source}");
            for length in 1..8 {
                let input = conversation(length);
                let text = template.run(template.context(&input, None, true.into()).ok().unwrap()).ok().unwrap();
                let without = template.run(template.context(&input, None, false.into()).ok().unwrap()).ok().unwrap();
                let got = template.run_with_reply(&input).ok().unwrap();
                assert_eq!(got, (text.clone(), common(&text, &without)), "{source}");
                if plainly && !source.starts_with(twice) {
                    assert_eq!(template.run_asked(&input).ok().unwrap(), (text.clone(), Some(got.1)));
                }
            }
        }
    }

    #[test]
    fn ends_are_compared_through_the_dye() {
        let source = "{% for m in messages %}{{ m.content.startswith('<a>') }}{{ m.content.endswith('é b') }}\
                      {{ m.content.startswith('') }}{{ m.content is endingwith('') }};{% endfor %}";
        let template = Template::compile(source, "{}").ok().unwrap();
        // The last has characters of the short dye, so that ASCII has another one.
        let contents = ["<a> é b", "é b<a>", "", "<a", "é", "\u{780}<a>é b"];
        let messages: Vec<Json> =
            contents.iter().map(|content| serde_json::json!({"role": "user", "content": content})).collect();
        for some in [&messages[..5], &messages[..]] {
            let input = serde_json::json!({"messages": some, "tools": [], "variables": {}}).to_string();
            let rendered = template.render(&input).ok().unwrap();
            let expected = ["TrueTrue", "FalseFalse", "FalseFalse", "FalseFalse", "FalseFalse", "FalseTrue"];
            let lines: String = expected[..some.len()].iter().map(|ends| format!("{ends}TrueTrue;")).collect();
            assert_eq!(rendered.text, lines);
        }
    }

    #[test]
    fn containment_becomes_visible() {
        let cases = [
            ("{% if '</think>' in content %}", "{% if (__contains(content, '</think>')) %}"),
            ("{%- if a and '<x>' not in m.content -%}", "{%- if a and (not __contains(m.content, '<x>')) -%}"),
            ("{{ ('<a>' in b) or 'c' in d }}", "{{ ((__contains(b, '<a>'))) or 'c' in d }}"),
            ("{{ '<a>' in b|trim }}", "{{ '<a>' in b|trim }}"),
            ("{{ '<a>' in b[0] }} '<a>' in b", "{{ '<a>' in b[0] }} '<a>' in b"),
        ];
        for (source, rewritten) in cases {
            assert_eq!(visible_containment(source), rewritten);
        }
    }
}
