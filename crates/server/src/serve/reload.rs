//! Reads the files of tokens again on SIGHUP.

use std::path::PathBuf;

use tokio::sync::oneshot;

use crate::http::Serving;
use crate::tokens::{Secret, Tokens};

/// What is read again on SIGHUP.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenFiles {
    pub(super) tokens: Option<PathBuf>,
    pub(super) node_token: Option<PathBuf>,
}

/// What was in the files, or why it cannot be used.
#[derive(Debug)]
pub(super) struct ReadTokens {
    tokens: Option<Result<Tokens, String>>,
    node_token: Option<Result<Secret, String>>,
}

/// Reads the files again, on a thread of its own: a disk that does not answer keeps neither the service nor its end.
#[derive(Debug)]
pub(super) struct Reload {
    files: TokenFiles,
    reading: Option<oneshot::Receiver<ReadTokens>>,
    /// It was asked for once more in the meantime.
    again: bool,
}

impl Reload {
    pub(super) fn new(files: TokenFiles) -> Self {
        Self { files, reading: None, again: false }
    }

    pub(super) fn start(&mut self) {
        if self.files.tokens.is_none() && self.files.node_token.is_none() {
            tracing::info!(signal = "SIGHUP", "there is no tokens file; nothing to read again");
            return;
        }
        if self.reading.is_some() {
            tracing::warn!(
                signal = "SIGHUP",
                "the tokens are still being read; they are read again afterwards"
            );
            self.again = true;
            return;
        }
        let (files, (sender, receiver)) = (self.files.clone(), oneshot::channel());
        let thread = std::thread::Builder::new().name("orchestrix-tokens".to_owned());
        let started = thread.spawn(move || {
            let tokens = files.tokens.as_deref().map(Tokens::load);
            let node_token = files.node_token.as_deref().map(Secret::load);
            // No caller waits for it when the process ends.
            let _ = sender.send(ReadTokens { tokens, node_token });
        });
        match started {
            Ok(_) => self.reading = Some(receiver),
            Err(error) => tracing::error!(%error, "cannot read the tokens again; the old ones stay in force"),
        }
    }

    /// What was read; waits for ever while nothing is.
    pub(super) async fn read(&mut self) -> Option<ReadTokens> {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let read = reading.await.ok();
        self.reading = None;
        read
    }

    /// Puts what was read into force. What cannot be used changes nothing.
    pub(super) fn finish(&mut self, read: Option<ReadTokens>, serving: &Serving) {
        let ReadTokens { tokens, node_token } = read.unwrap_or(ReadTokens { tokens: None, node_token: None });
        match tokens {
            Some(Ok(tokens)) => serving.replace_tokens(tokens),
            Some(Err(why)) => {
                tracing::error!(why, "cannot read the tokens again; the old ones stay in force")
            }
            None => {}
        }
        match node_token {
            Some(Ok(token)) => serving.replace_node_token(&token),
            Some(Err(why)) => {
                tracing::error!(why, "cannot read the node's token again; the old one stays in use");
            }
            None => {}
        }
        if std::mem::take(&mut self.again) {
            self.start();
        }
    }
}
