//! Byte-level BPE through the crate `tokenizers`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;

use tokenizers::tokenizer::{Model, Normalizer, NormalizerWrapper, PreTokenizer};
use tokenizers::{NormalizedString, OffsetReferential, OffsetType, PreTokenizedString};

use crate::Fault;

pub const EXISTS: u8 = 1;
pub const ADDED: u8 = 2;
pub const SPECIAL: u8 = 4;

#[derive(Clone, Default)]
pub struct Word {
    pub bytes: Vec<u8>,
    pub flags: u8,
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    char_of_byte: [char; 256],
}

/// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards.
fn byte_level_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        alphabet[byte as usize] = if printable {
            byte as char
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap()
        };
    }
    alphabet
}

fn fault(error: impl std::fmt::Display) -> Fault {
    Fault::Internal(format!("tokenizer: {error}"))
}

impl Tokenizer {
    pub fn from_json(json: &[u8]) -> Result<Self, Fault> {
        let text = std::str::from_utf8(json).map_err(|error| Fault::Input(format!("not UTF-8: {error}")))?;
        let inner = tokenizers::Tokenizer::from_str(text).map_err(|error| Fault::Input(error.to_string()))?;
        let tokenizer = Tokenizer { inner, char_of_byte: byte_level_alphabet() };
        tokenizer.check()?;
        Ok(tokenizer)
    }

    fn check(&self) -> Result<(), Fault> {
        let vocabulary = self.inner.get_model().get_vocab();
        if vocabulary.is_empty() {
            return Err(Fault::Input("the vocabulary is empty".into()));
        }
        let byte_of_char = self.byte_of_char();
        let added = self.inner.get_added_tokens_decoder();
        let stranger = vocabulary
            .iter()
            .find(|(text, id)| !added.contains_key(id) && !text.chars().all(|c| byte_of_char.contains_key(&c)));
        match stranger {
            Some((_, id)) => Err(Fault::Input(format!("token {id} is not byte-level; only byte-level BPE is served"))),
            None => Ok(()),
        }
    }

    fn byte_of_char(&self) -> HashMap<char, u8> {
        self.char_of_byte.iter().enumerate().map(|(byte, &c)| (c, byte as u8)).collect()
    }

    pub fn vocabulary(&self) -> Vec<Word> {
        let byte_of_char = self.byte_of_char();
        let model = self.inner.get_model().get_vocab();
        let added = self.inner.get_added_tokens_decoder();
        let last = model.values().chain(added.keys()).max().copied().unwrap_or(0);
        let mut words = vec![Word::default(); last as usize + 1];
        for (text, id) in &model {
            let bytes = text.chars().filter_map(|c| byte_of_char.get(&c).copied()).collect();
            words[*id as usize] = Word { bytes, flags: EXISTS };
        }
        for (id, token) in &added {
            let flags = EXISTS | ADDED | if token.special { SPECIAL } else { 0 };
            words[*id as usize] = Word { bytes: token.content.as_bytes().to_vec(), flags };
        }
        words
    }

    pub fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        if let Ok(text) = std::str::from_utf8(bytes) {
            if let Some(&id) = self.inner.get_added_vocabulary().get_vocab().get(text) {
                return Some(id);
            }
        }
        let spelled: String = bytes.iter().map(|&byte| self.char_of_byte[byte as usize]).collect();
        self.inner.get_model().token_to_id(&spelled)
    }

    /// Control segments are cut at the added tokens they spell out; all text between two of those, user text included,
    /// is encoded as one, so that words are cut as in the plain text.
    pub fn encode(&self, segments: &[(Cow<str>, bool)]) -> Result<Vec<u32>, Fault> {
        let mut ids = Vec::new();
        let mut plain = String::new();
        for run in segments.chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(text, _)| text.as_ref()).collect();
            if !run[0].1 {
                plain.push_str(&text);
                continue;
            }
            let pieces = self.inner.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, &text);
            for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
                match tokens {
                    Some(tokens) => {
                        self.encode_plain(&std::mem::take(&mut plain), &mut ids)?;
                        ids.extend(tokens.iter().map(|token| token.id));
                    }
                    None => plain.push_str(piece),
                }
            }
        }
        self.encode_plain(&plain, &mut ids)?;
        Ok(ids)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            normalizer.normalize(&mut normalized).map_err(fault)?;
        }
        let mut words = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words).map_err(fault)?;
        }
        words.tokenize(|word| self.inner.get_model().tokenize(word.get())).map_err(fault)?;
        let encoding = words.into_encoding(None, 0, OffsetType::None).map_err(fault)?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}
