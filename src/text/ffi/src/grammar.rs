//! Constrained decoding through the crate llguidance: JSON schemas and Lark grammars as masks over token ids.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use serde_json::{Value as Json, json};

use crate::Fault;
use crate::tokenizer::{ADDED, Tokenizer};

/// Models of the family like to fill the space between JSON tokens until the limit; this much is enough for any layout.
const SPACE_BETWEEN: &str = r"[\x20\x0A\x0D\x09]{1,64}";
const SPACE_BEFORE: &str = r"start: space @body
space: /[ \n\r\t]{0,16}/
";

pub enum Kind {
    JsonSchema,
    Lark,
}

pub struct Grammars {
    factory: ParserFactory,
    stop_tokens: Vec<u32>,
}

pub struct Matcher {
    matcher: llguidance::Matcher,
    stop_tokens: Vec<u32>,
    /// Number of stop tokens consumed; the matcher itself never sees one.
    stopped: usize,
}

fn internal(error: impl std::fmt::Display) -> Fault {
    Fault::Internal(format!("grammar: {error}"))
}

impl Grammars {
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32], vocabulary: u32) -> Result<Self, Fault> {
        let mut words: Vec<Vec<u8>> = tokenizer
            .vocabulary()
            .into_iter()
            .map(|word| match word.bytes {
                // A control token is not text: only grammars that name it may use it.
                bytes if word.flags & ADDED != 0 => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat(),
                // This byte is in no UTF-8 text, and here it is the mark of control tokens.
                bytes if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
                bytes => bytes,
            })
            .collect();
        words.resize(vocabulary as usize, Vec::new());
        let Some(&first) = stop_tokens.first() else { return Err(internal("no stop token")) };
        if let Some(stranger) = stop_tokens.iter().find(|&&token| token >= vocabulary) {
            return Err(internal(format!("stop token {stranger} is outside the vocabulary")));
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary, first), &words).with_eos_tokens(stop_tokens);
        // Not "canonical": every cut of the text into tokens that the grammar allows may be chosen.
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let mut factory =
            ParserFactory::new(&environment, InferenceCapabilities::default(), &slices).map_err(internal)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Grammars { factory, stop_tokens: stop_tokens.to_vec() })
    }

    pub fn matcher(&self, kind: Kind, grammar: &str, leading_space: bool) -> Result<Matcher, Fault> {
        let mut body = match kind {
            Kind::JsonSchema => GrammarWithLexer::from_json_schema(schema_of(grammar)?),
            Kind::Lark => GrammarWithLexer::from_lark(grammar.to_string()),
        };
        let mut grammars = Vec::new();
        if leading_space {
            body.name = Some("body".into());
            grammars.push(GrammarWithLexer::from_lark(SPACE_BEFORE.into()));
        }
        grammars.push(body);
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let parser = self.factory.create_parser(top).map_err(|error| Fault::Input(one_line(&error.to_string())))?;
        let mut matcher = llguidance::Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(Fault::Input(one_line(&error)));
        }
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(Fault::Input(one_line(warning)));
        }
        // A grammar that can only recurse for ever shows when it is asked for its first token.
        matcher.compute_mask_or_eos().map_err(|_| Fault::Input("it allows no text at all".into()))?;
        Ok(Matcher { matcher, stop_tokens: self.stop_tokens.clone(), stopped: 0 })
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

fn schema_of(text: &str) -> Result<Json, Fault> {
    let mut schema: Json = serde_json::from_str(text).map_err(|error| Fault::Input(format!("not JSON: {error}")))?;
    match &mut schema {
        Json::Bool(true) => schema = json!({}),
        Json::Bool(false) => return Err(Fault::Input("the schema false allows nothing".into())),
        Json::Object(_) => {}
        _ => return Err(Fault::Input("a schema is an object or a boolean".into())),
    }
    schema["x-guidance"] = json!({ "whitespace_pattern": SPACE_BETWEEN });
    Ok(schema)
}

impl Matcher {
    pub fn mask(&mut self, mask: &mut [u32]) -> Result<(), Fault> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(internal)?;
        let words = allowed.as_slice();
        mask.fill(0);
        let common = mask.len().min(words.len());
        mask[..common].copy_from_slice(&words[..common]);
        Ok(())
    }

    pub fn consume(&mut self, token: u32) -> Result<(), Fault> {
        if self.stop_tokens.contains(&token) {
            if !self.matcher.is_accepting().map_err(internal)? {
                return Err(internal("a stop token before the end"));
            }
            self.stopped += 1;
            return Ok(());
        }
        if self.stopped > 0 || self.matcher.is_stopped() {
            return Err(internal("a token after the end"));
        }
        // Refused before it is consumed: a failed consume would leave the matcher in an error state for good.
        match self.matcher.try_consume_tokens(&[token]).map_err(internal)? {
            1 => Ok(()),
            _ => Err(internal("a forbidden token")),
        }
    }

    pub fn rollback(&mut self, tokens: usize) -> Result<(), Fault> {
        let stops = tokens.min(self.stopped);
        self.stopped -= stops;
        self.matcher.rollback(tokens - stops).map_err(internal)
    }
}
