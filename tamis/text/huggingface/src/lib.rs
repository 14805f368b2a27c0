//! The C functions of tokenizers_c.h. Each catches panics and returns them as text.

use std::any::Any;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Once;

use tokenizers::models::bpe::{BpeTrainer, BPE};
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer, Trainer,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DONE: i32 = 0;
const REFUSED: i32 = 1;

#[repr(C)]
pub struct Text {
    data: *mut c_char,
    size: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut u32,
    size: usize,
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        let bytes = Box::leak(text.into_bytes().into_boxed_slice());
        Text { data: bytes.as_mut_ptr().cast(), size: bytes.len() }
    }
}

impl From<&[u32]> for Ids {
    fn from(ids: &[u32]) -> Self {
        let ids = Box::leak(ids.to_vec().into_boxed_slice());
        Ids { data: ids.as_mut_ptr(), size: ids.len() }
    }
}

fn text_of_panic(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic").to_string()
}

/// Runs `work`; stores its result in `result`, or the text of its error or panic in `message`.
unsafe fn guarded<T, C: From<T>>(result: *mut C, message: *mut Text, work: impl FnOnce() -> Result<T>) -> i32 {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {}))); // panics are reported once, by the caller
    let done = catch_unwind(AssertUnwindSafe(|| work().map(C::from).map_err(|error| error.to_string())));
    match done.unwrap_or_else(|panic| Err(text_of_panic(panic))) {
        Ok(value) => {
            result.write(value);
            DONE
        }
        Err(text) => {
            message.write(text.into());
            REFUSED
        }
    }
}

/// The slice that C describes with a pointer, which may be null for an empty one, and a length.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}

pub struct Handle(*mut Tokenizer);

impl From<Tokenizer> for Handle {
    fn from(tokenizer: Tokenizer) -> Self {
        Handle(Box::into_raw(Box::new(tokenizer)))
    }
}

fn read(json: &[u8]) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_bytes(json)?;
    tokenizer.with_truncation(None)?;
    tokenizer.with_padding(None);
    if let ModelWrapper::BPE(model) = tokenizer.get_model() {
        let mut model = model.clone();
        model.dropout = None; // the same text always has the same ids
        tokenizer.with_model(model);
    }
    Ok(tokenizer)
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_read(
    json: *const u8,
    bytes: usize,
    made: *mut *mut Tokenizer,
    message: *mut Text,
) -> i32 {
    let mut handle = Handle(std::ptr::null_mut());
    let status = guarded(&mut handle, message, || read(slice(json, bytes)));
    made.write(handle.0);
    status
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> u64 {
    let largest = catch_unwind(AssertUnwindSafe(|| (*tokenizer).get_vocab(true).into_values().max()));
    largest.unwrap_or_default().map_or(0, |id| u64::from(id) + 1)
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_added_token(tokenizer: *const Tokenizer, name: *const u8, bytes: usize) -> i64 {
    let name = String::from_utf8_lossy(slice(name, bytes));
    let find = || (*tokenizer).get_added_vocabulary().get_vocab().get(name.as_ref()).copied();
    catch_unwind(AssertUnwindSafe(find)).unwrap_or_default().map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: *const u8,
    bytes: usize,
    ids: *mut Ids,
    message: *mut Text,
) -> i32 {
    guarded(ids, message, || {
        let text = String::from_utf8_lossy(slice(text, bytes));
        let encoding = (*tokenizer).encode_fast(text.as_ref(), false)?;
        Ok(Ids::from(encoding.get_ids()))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    count: usize,
    text: *mut Text,
    message: *mut Text,
) -> i32 {
    guarded(text, message, || (*tokenizer).decode(slice(ids, count), false))
}

type NextPart = unsafe extern "C" fn(*mut c_void, *mut *const u8, *mut usize) -> bool;

/// The training text, part by part.
struct Parts {
    next: NextPart,
    context: *mut c_void,
}

// The crate takes parts from different threads, but only one at a time.
unsafe impl Send for Parts {}

impl Iterator for Parts {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut data = std::ptr::null();
        let mut size = 0;
        unsafe {
            let more = (self.next)(self.context, &mut data, &mut size);
            more.then(|| String::from_utf8_lossy(slice(data, size)).into_owned())
        }
    }
}

/// The time of a merge grows with the square of a word's length, so longer words are cut.
const LONGEST_WORD: usize = 4096; // bytes
const WORD_PIECE: usize = 256;

/// Splitting a line into words takes 130 times its memory.
const LONGEST_LINE: usize = 1 << 20; // bytes

/// The first part of a line, which ends with a word unless there is no space in the second half of LONGEST_LINE bytes.
fn first_section(line: &str) -> &str {
    if line.len() <= LONGEST_LINE {
        return line;
    }
    let bytes = line.as_bytes();
    let ends_word = |&at: &usize| bytes[at] == b' ' && bytes[at - 1].is_ascii_graphic();
    let word_end = (LONGEST_LINE / 2..=LONGEST_LINE).rev().find(ends_word);
    let character_end = || (1..=LONGEST_LINE).rev().find(|&at| line.is_char_boundary(at));
    &line[..word_end.or_else(character_end).unwrap_or(line.len())]
}

/// The words of a part, in GPT-2's alphabet, which has a letter for each byte. Adds the bytes of words that are cut.
fn words(byte_level: &ByteLevel, part: &str, cut_bytes: &AtomicU64) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for line in part.split_inclusive('\n') {
        let mut rest = line;
        while !rest.is_empty() {
            let section = first_section(rest);
            rest = &rest[section.len()..];
            let mut splits = PreTokenizedString::from(section);
            byte_level.pre_tokenize(&mut splits)?;
            for (word, _, _) in splits.get_splits(OffsetReferential::Original, OffsetType::None) {
                if word.chars().count() <= LONGEST_WORD {
                    words.push(word.to_owned());
                    continue;
                }
                let letters: Vec<char> = word.chars().collect();
                cut_bytes.fetch_add(letters.len() as u64, Ordering::Relaxed);
                words.extend(letters.chunks(WORD_PIECE).map(|piece| piece.iter().collect::<String>()));
            }
        }
    }
    Ok(words)
}

struct Trained {
    json: String,
    cut_bytes: u64,
}

fn train(parts: Parts, vocab_size: u64, min_frequency: u64, special_token: &str) -> Result<Trained> {
    let byte_level = ByteLevel::new(false, true, true);
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab_size as usize)
        .min_frequency(min_frequency)
        .special_tokens(vec![AddedToken::from(special_token, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let cut_bytes = AtomicU64::new(0);
    trainer.feed(parts, |part| words(&byte_level, part, &cut_bytes))?;
    let mut model = BPE::default();
    let special_tokens = trainer.train(&mut model)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(byte_level));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.add_special_tokens(special_tokens)?;
    Ok(Trained { json: tokenizer.to_string(true)? + "\n", cut_bytes: cut_bytes.into_inner() })
}

#[repr(C)]
pub struct TrainedTokenizer {
    json: Text,
    cut_bytes: u64,
}

impl From<Trained> for TrainedTokenizer {
    fn from(trained: Trained) -> Self {
        TrainedTokenizer { json: trained.json.into(), cut_bytes: trained.cut_bytes }
    }
}

#[no_mangle]
pub unsafe extern "C" fn tamis_tokenizer_train(
    next: NextPart,
    context: *mut c_void,
    vocab_size: u64,
    min_frequency: u64,
    special_token: *const u8,
    special_token_bytes: usize,
    threads: usize,
    trained: *mut TrainedTokenizer,
    message: *mut Text,
) -> i32 {
    let parts = Parts { next, context };
    guarded(trained, message, || {
        let special_token = String::from_utf8_lossy(slice(special_token, special_token_bytes));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.install(|| train(parts, vocab_size, min_frequency, &special_token))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tamis_text_free(text: Text) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(text.data, text.size)));
}

#[no_mangle]
pub unsafe extern "C" fn tamis_ids_free(ids: Ids) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)));
}
