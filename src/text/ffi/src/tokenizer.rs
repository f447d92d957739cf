//! Byte-level BPE through the crate `tokenizers`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

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
    known: Mutex<Known>,
    cut: Mutex<HashMap<String, Arc<[Piece]>>>,
}

/// What a control segment is cut into.
enum Piece {
    Tokens(Vec<u32>),
    Text(String),
}
/// Templates write the same few control segments again and again; one that does not fills this and has it emptied.
const MOST_CUT: usize = 1024;
const LONGEST_CUT: usize = 4096; // bytes

/// Ids of texts that were encoded before. A conversation comes back whole at every turn, and between two control tokens a
/// text's ids depend on nothing but the text: only what is new has to be encoded (1.5 to 2.5 MB/s, so 60 ms and more for
/// 32K tokens; the shortest takes some 7 us). Two generations: when the younger is full it becomes the older, whose texts
/// are forgotten unless asked for.
#[derive(Default)]
struct Known {
    young: HashMap<String, Arc<[u32]>>,
    old: HashMap<String, Arc<[u32]>>,
    young_bytes: usize,
}

impl Known {
    const GENERATION: usize = 16 << 20; // bytes
    const ENTRY: usize = 96; // bytes beside text and ids

    fn find(&mut self, text: &str) -> Option<Arc<[u32]>> {
        if let Some(ids) = self.young.get(text) {
            return Some(ids.clone());
        }
        let (text, ids) = self.old.remove_entry(text)?;
        self.add(text, ids.clone());
        Some(ids)
    }

    fn add(&mut self, text: String, ids: Arc<[u32]>) {
        let bytes = text.len() + 4 * ids.len() + Self::ENTRY;
        if bytes > Self::GENERATION {
            return;
        }
        if self.young_bytes + bytes > Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(text, ids);
    }
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
        let tokenizer =
            Tokenizer { inner, char_of_byte: byte_level_alphabet(), known: Mutex::default(), cut: Mutex::default() };
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
            for piece in self.cut_control(text).iter() {
                match piece {
                    Piece::Tokens(tokens) => {
                        self.encode_plain(&plain, &mut ids)?;
                        plain.clear();
                        ids.extend_from_slice(tokens);
                    }
                    Piece::Text(piece) => plain.push_str(piece),
                }
            }
        }
        self.encode_plain(&plain, &mut ids)?;
        Ok(ids)
    }

    fn cut_control(&self, text: String) -> Arc<[Piece]> {
        let known = || self.cut.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(pieces) = known().get(&text) {
            return pieces.clone();
        }
        let cut = self.inner.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, &text);
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::None);
        let pieces: Arc<[Piece]> = splits
            .into_iter()
            .map(|(piece, _, tokens)| match tokens {
                Some(tokens) => Piece::Tokens(tokens.iter().map(|token| token.id).collect()),
                None => Piece::Text(piece.to_string()),
            })
            .collect();
        if text.len() <= LONGEST_CUT {
            let mut known = known();
            if known.len() == MOST_CUT {
                known.clear();
            }
            known.insert(text, pieces.clone());
        }
        pieces
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        // A thread that panicked in here left at worst a text out.
        let known = || self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(found) = known().find(text) {
            ids.extend_from_slice(&found);
            return Ok(());
        }
        let begin = ids.len();
        self.encode_anew(text, ids)?;
        known().add(text.to_owned(), ids[begin..].into());
        Ok(())
    }

    fn encode_anew(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Fault> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(seed: u32) -> Arc<[u32]> {
        vec![seed; 1000].into()
    }

    #[test]
    fn what_was_encoded_is_known_until_two_generations_have_passed() {
        let mut known = Known::default();
        let long = |i: usize| format!("{i:08}").repeat(1 << 17); // a MiB, and 4 KB of ids
        known.add(long(0), ids(0));
        for i in 1..20 {
            known.add(long(i), ids(i as u32));
            assert_eq!(known.find(&long(0)), Some(ids(0)), "a text that is asked for stays");
        }
        assert_eq!(known.find(&long(19)), Some(ids(19)));
        for i in 20..60 {
            known.add(long(i), ids(i as u32));
        }
        assert_eq!(known.find(&long(0)), None);
        let bytes: usize = known.young.iter().chain(&known.old).map(|(text, ids)| text.len() + 4 * ids.len()).sum();
        assert!(bytes <= 2 * Known::GENERATION);
    }

    #[test]
    fn short_texts_count_with_what_keeping_them_takes() {
        let mut known = Known::default();
        for i in 0..1_000_000 {
            known.add(format!("{i}"), vec![1].into());
        }
        assert!(known.young.len() + known.old.len() <= 2 * Known::GENERATION / Known::ENTRY);
    }

    #[test]
    fn a_text_larger_than_a_generation_is_not_kept() {
        let mut known = Known::default();
        known.add("x".repeat(Known::GENERATION + 1), ids(1));
        assert!(known.young.is_empty());
    }
}
