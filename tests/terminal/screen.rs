// SPDX-License-Identifier: Apache-2.0
//! As much of a terminal as it takes to see what a program has drawn. What it does not know it takes for a fault.

/// The cells of a screen.
pub struct Screen {
    columns: usize,
    rows: usize,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    rest: Vec<u8>,
    /// The program has a screen of its own.
    pub alternate: bool,
    /// The cursor is shown.
    pub cursor: bool,
    /// What was not understood, or did not fit.
    pub fault: Option<String>,
}

impl Screen {
    /// An empty one.
    pub fn new(columns: usize, rows: usize) -> Screen {
        let cells = vec![vec![' '; columns]; rows];
        Screen {
            columns,
            rows,
            cells,
            at: (0, 0),
            rest: Vec::new(),
            alternate: false,
            cursor: true,
            fault: None,
        }
    }

    /// What is shown, without blanks at the ends of lines.
    pub fn lines(&self) -> Vec<String> {
        self.cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    /// Takes in what the program wrote; what is cut off in the middle waits for the rest.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let text = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.to_owned(),
            Err(error) => String::from_utf8_lossy(&self.rest[..error.valid_up_to()]).into_owned(),
        };
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let taken = match first {
                '\u{1b}' => match self.sequence(rest) {
                    Some(length) => length,
                    None => break,
                },
                '\r' => {
                    self.at.0 = 0;
                    1
                }
                '\n' => {
                    self.at.1 += 1;
                    1
                }
                _ => {
                    self.put(first);
                    first.len_utf8()
                }
            };
            rest = &rest[taken..];
        }
        let done = text.len() - rest.len();
        self.rest.drain(..done);
    }

    fn put(&mut self, character: char) {
        let (column, row) = self.at;
        match self.cells.get_mut(row).and_then(|line| line.get_mut(column)) {
            Some(cell) => *cell = character,
            None => self.fault(format!("{character:?} at column {column} of row {row}")),
        }
        self.at.0 += 1;
    }

    /// One control sequence; its length, or nothing when it is not whole.
    fn sequence(&mut self, text: &str) -> Option<usize> {
        let body = text.strip_prefix("\u{1b}[");
        let Some(body) = body else {
            if text.len() > 1 {
                self.fault(format!("{:?}", text.chars().take(3).collect::<String>()));
            }
            return (text.len() > 1).then_some(2);
        };
        let end = body.find(|c: char| ('@'..='~').contains(&c))?;
        let (parameters, action) = (&body[..end], &body[end..=end]);
        let number = |index: usize| {
            let given = parameters.split(';').nth(index).and_then(|text| text.parse::<usize>().ok());
            given.unwrap_or(1).max(1) - 1
        };
        match action {
            "H" => self.at = (number(1), number(0)),
            "J" => {
                for line in &mut self.cells {
                    line.fill(' ');
                }
            }
            "K" => {
                if let Some(line) = self.cells.get_mut(self.at.1) {
                    line.iter_mut().skip(self.at.0).for_each(|cell| *cell = ' ');
                }
            }
            "h" | "l" => self.mode(parameters, action == "h"),
            // Colours.
            "m" => {}
            _ => self.fault(format!("{parameters}{action}")),
        }
        if self.at.0 > self.columns || self.at.1 > self.rows {
            self.fault(format!("moved to {:?}", self.at));
        }
        Some(2 + end + 1)
    }

    fn mode(&mut self, parameters: &str, on: bool) {
        match parameters {
            "?25" => self.cursor = on,
            "?1049" => self.alternate = on,
            _ => {}
        }
    }

    fn fault(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }
}

#[test]
fn a_screen_shows_what_was_drawn_and_refuses_what_does_not_fit() {
    let mut screen = Screen::new(5, 2);
    for piece in ["\u{1b}[?1049h\u{1b}[?25l\u{1b}[2;2Ha", "b\u{1b}[", "1;1H\u{1b}[31m─", "c"] {
        screen.feed(piece.as_bytes());
    }
    assert_eq!(screen.lines(), ["─c", " ab"]);
    assert!(screen.alternate && !screen.cursor && screen.fault.is_none());
    screen.feed("─".as_bytes().split_at(1).0);
    screen.feed("─".as_bytes().split_at(1).1);
    assert_eq!(screen.lines()[0], "─c─");
    screen.feed(b"\x1b[2J\x1b[1;4Hxyz");
    assert!(screen.fault.is_some(), "three do not fit into two");
    assert_eq!(screen.lines(), ["   xy", ""]);
}
