//! The C ABI declared in splash_text_ffi.h. Only this file is `unsafe`: it turns C buffers into slices, catches panics
//! and hands out results; the rooms behind it are plain Rust.

mod dye;
mod grammar;
mod python;
mod template;
mod tokenizer;

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use grammar::{Grammars, Matcher};
use template::Template;
use tokenizer::Tokenizer;

/// Whose fault a failure is.
pub enum Fault {
    Input(String),
    Internal(String),
}

// The header promises that these handles may be shared between threads, and that a matcher may move to another one.
const fn shared<T: Sync + Send>() {}
const fn movable<T: Send>() {}
const _: () = {
    shared::<Tokenizer>();
    shared::<Template>();
    shared::<Grammars>();
    movable::<Matcher>();
};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct Segment {
    text: Text,
    control: i32,
}

impl Text {
    unsafe fn bytes(&self) -> &[u8] {
        if self.size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data, self.size) } }
    }

    unsafe fn text(&self) -> Cow<'_, str> {
        let bytes = unsafe { self.bytes() };
        // The check for whole UTF-8 is many times faster than the reader that replaces what is not.
        std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        Bytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

impl From<Vec<u32>> for Bytes {
    fn from(words: Vec<u32>) -> Self {
        words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>().into()
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Catches the panics of `body` and keeps them off stderr: the caller reports them in an error of ours. A panic anywhere
/// else is printed as ever.
fn caught<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let printing = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CATCHING.get() {
                printing(panic);
            }
        }));
    });
    CATCHING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHING.set(false);
    outcome
}

/// Runs `body`, catches its panics, and turns its outcome into a status and an error text.
unsafe fn guarded(error: *mut Bytes, body: impl FnOnce() -> Result<(), Fault>) -> i32 {
    let outcome = caught(body).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(Fault::Internal(what.unwrap_or_else(|| "panic".into())))
    });
    let (status, message) = match outcome {
        Ok(()) => return 0,
        Err(Fault::Input(message)) => (1, message),
        Err(Fault::Internal(message)) => (2, message),
    };
    unsafe { error.write(message.into_bytes().into()) };
    status
}

fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

unsafe fn close<T>(handle: *mut T) {
    if !handle.is_null() {
        let _ = caught(|| drop(unsafe { Box::from_raw(handle) }));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_bytes_free(bytes: Bytes) {
    if bytes.capacity != 0 {
        drop(unsafe { Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_tokenizer_open(json: Text, out: *mut *mut Tokenizer, error: *mut Bytes) -> i32 {
    unsafe {
        guarded(error, || {
            out.write(give(Tokenizer::from_json(json.bytes())?));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_tokenizer_close(tokenizer: *mut Tokenizer) {
    unsafe { close(tokenizer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_tokenizer_vocabulary(
    tokenizer: *const Tokenizer,
    bytes: *mut Bytes,
    ends: *mut Bytes,
    flags: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            let vocabulary = (*tokenizer).vocabulary();
            bytes.write(vocabulary.iter().flat_map(|word| word.bytes.iter().copied()).collect::<Vec<u8>>().into());
            let mut end = 0u32;
            let all_ends: Vec<u32> = vocabulary
                .iter()
                .map(|word| {
                    end += word.bytes.len() as u32;
                    end
                })
                .collect();
            ends.write(all_ends.into());
            flags.write(vocabulary.iter().map(|word| word.flags).collect::<Vec<u8>>().into());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_tokenizer_id(tokenizer: *const Tokenizer, text: Text) -> i64 {
    let find = || unsafe { (*tokenizer).id_of(text.bytes()) };
    catch_unwind(AssertUnwindSafe(find)).ok().flatten().map_or(-1, i64::from)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_tokenizer_encode(
    tokenizer: *const Tokenizer,
    segments: *const Segment,
    count: usize,
    ids: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            let segments = if count == 0 { &[] } else { std::slice::from_raw_parts(segments, count) };
            let segments: Vec<(Cow<str>, bool)> = segments.iter().map(|s| (s.text.text(), s.control != 0)).collect();
            ids.write((*tokenizer).encode(&segments)?.into());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_template_open(
    source: Text,
    constants: Text,
    out: *mut *mut Template,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            out.write(give(Template::compile(&source.text(), &constants.text())?));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_template_close(template: *mut Template) {
    unsafe { close(template) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_template_render(
    template: *const Template,
    input: Text,
    text: *mut Bytes,
    cuts: *mut Bytes,
    reply_start: *mut usize,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            if cuts.is_null() {
                text.write((*template).render_plain(&input.text())?.into_bytes().into());
                return Ok(());
            }
            let rendered = (*template).render(&input.text())?;
            text.write(rendered.text.into_bytes().into());
            let pairs = rendered.segments.iter().flat_map(|&(end, control)| [end as u32, u32::from(control)]);
            cuts.write(pairs.collect::<Vec<u32>>().into());
            reply_start.write(rendered.reply_start);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_grammars_open(
    tokenizer: *const Tokenizer,
    stop_tokens: *const u32,
    stop_token_count: usize,
    vocabulary: u32,
    out: *mut *mut Grammars,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            let stop_tokens =
                if stop_token_count == 0 { &[] } else { std::slice::from_raw_parts(stop_tokens, stop_token_count) };
            out.write(give(Grammars::new(&*tokenizer, stop_tokens, vocabulary)?));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_grammars_close(grammars: *mut Grammars) {
    unsafe { close(grammars) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_matcher_open(
    grammars: *const Grammars,
    kind: i32,
    grammar: Text,
    leading_space: i32,
    out: *mut *mut Matcher,
    error: *mut Bytes,
) -> i32 {
    unsafe {
        guarded(error, || {
            let kind = if kind == 0 { grammar::Kind::JsonSchema } else { grammar::Kind::Lark };
            out.write(give((*grammars).matcher(kind, &grammar.text(), leading_space != 0)?));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_matcher_close(matcher: *mut Matcher) {
    unsafe { close(matcher) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_matcher_mask(
    matcher: *mut Matcher,
    mask: *mut u32,
    words: usize,
    error: *mut Bytes,
) -> i32 {
    unsafe { guarded(error, || (*matcher).mask(std::slice::from_raw_parts_mut(mask, words))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_matcher_consume(matcher: *mut Matcher, token: u32, error: *mut Bytes) -> i32 {
    unsafe { guarded(error, || (*matcher).consume(token)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splash_matcher_rollback(matcher: *mut Matcher, tokens: usize, error: *mut Bytes) -> i32 {
    unsafe { guarded(error, || (*matcher).rollback(tokens)) }
}
