//! Which changes of a file are worth a test, and how does a source look in which each can be switched on?
//!
//! ```text
//!   a < b       becomes   (if crate::mutant(7) {/*7*/ (a) <= (b) /*~7*/} else { a < b })
//! ```
//!
//! So one build has all mutants of its files, and a number in the environment says which of them is alive. The other
//! branch holds what was there, with the mutants inside it; a changed one holds none, as one mutant lives at a time.
//!
//! | what is changed | into |
//! |---|---|
//! | `==`, `!=`, `<`, `<=`, `>`, `>=` | the opposite, and the neighbour that differs in equality |
//! | `+`, `-`, `*`, `/`, `%`, `<<`, `>>`, `&`, `\|`, and those with `=` | another one |
//! | `&&`, `\|\|`, `!`, unary `-` | the other one; nothing |
//! | a statement that only calls or assigns | nothing |
//! | the body of a function that returns a bool, an integer, an option, or nothing | both bools, 0 and 1, `None`, nothing |
//! | the guard of an arm | true, false |
//! | a step of a commit: a statement `call()?;` or `let _ = call();` | nothing |
//! | what a `for` loop, or `all`, `any`, `for_each`, `try_for_each` or `collect`, goes through | the first alone |
//! | a field of a struct's literal | its default |
//! | a flag that a state packs | false |
//!
//! The last four kinds are [`Kinds::Effects`]: what a change of a program forgets, where the others are what it gets
//! wrong.
//!
//! Not changed: tests, constants and functions that are `const`, and arguments of macros (assertions above all).
//! Source of the operators: Jia and Harman, "An Analysis and Survey of the Development of Mutation Testing", TSE 2011;
//! of one build for all: Untch, Offutt, Harrold, "Mutation Analysis Using Mutant Schemata", ISSTA 1993.

use proc_macro2::Span;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One change.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Line of its file, from 1.
    pub line: usize,
    /// The function that it is in.
    pub function: String,
    /// Was and is, in a few words.
    pub what: String,
}

/// Which kinds of mutants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinds {
    /// Operators, statements, results and guards.
    Operators,
    /// Steps, loops and fields.
    Effects,
    /// Both.
    All,
}

impl Kinds {
    /// The kinds of this name.
    pub fn read(name: &str) -> Option<Kinds> {
        match name {
            "operators" => Some(Kinds::Operators),
            "effects" => Some(Kinds::Effects),
            "all" => Some(Kinds::All),
            _ => None,
        }
    }
}

/// How a changed text stands in for the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// An expression.
    Instead,
    /// A statement is left out.
    Without,
    /// Text before the first statement of a body.
    First,
    /// A field's value, where its name alone is written.
    Named,
    /// Behind an iterator: as many of it as are left.
    Many {
        /// It is an iterator only when it is asked for one.
        is_made: bool,
    },
}

struct Place {
    range: Range<usize>,
    way: Way,
    changes: Vec<(u32, String)>,
}

/// The mutants of a source, and where they stand.
pub struct Found<'s> {
    source: &'s str,
    places: Vec<Place>,
    /// Mutants in the order of their numbers.
    pub mutants: Vec<Mutant>,
    function: String,
    is_const: bool,
    next: u32,
    kinds: Kinds,
}

/// Values that are a type's default, as they are written: a field of these, or of what is made of one of them alone
/// (`AtomicU64::new(0)`, `VSpan(0)`, `[None; N]`), is not changed.
const DEFAULTS: [&str; 10] =
    ["0", "0.0", "false", "None", "Vec::new()", "vec![]", "String::new()", "BTreeMap::new()", "&[]", "\"\""];

/// Methods that go through what they are called on.
const GOES_THROUGH: [&str; 5] = ["all", "any", "for_each", "try_for_each", "collect"];

impl<'s> Found<'s> {
    /// The mutants of a source. `first`: the number of the first one.
    ///
    /// # Errors
    /// One sentence if it is not Rust.
    pub fn of(source: &'s str, first: u32, kinds: Kinds) -> Result<Found<'s>, String> {
        let file = syn::parse_file(source).map_err(|error| error.to_string())?;
        let mut found = Found {
            source,
            places: Vec::new(),
            mutants: Vec::new(),
            function: String::new(),
            is_const: false,
            next: first,
            kinds,
        };
        found.visit_file(&file);
        // An enclosing place comes first.
        found.places.sort_by_key(|place| (place.range.start, std::cmp::Reverse(place.range.end)));
        Ok(found)
    }

    /// The source with these mutants in it.
    pub fn render(&self, is_in: &dyn Fn(u32) -> bool) -> String {
        let mut next = 0;
        self.part(0..self.source.len(), &mut next, is_in)
    }

    fn part(&self, range: Range<usize>, next: &mut usize, is_in: &dyn Fn(u32) -> bool) -> String {
        let (mut out, mut at) = (String::new(), range.start);
        while let Some(place) = self.places.get(*next).filter(|place| place.range.start < range.end) {
            *next += 1;
            out.push_str(&self.source[at..place.range.start]);
            let inner = self.part(place.range.clone(), next, is_in);
            at = place.range.end;
            let changes = place.changes.iter().filter(|(number, _)| is_in(*number));
            let ifs = changes.map(|(number, text)| {
                format!("if crate::mutant({number}) {{/*{number}*/ {} /*~{number}*/}} ", text.replace('\n', " "))
            });
            let ifs: Vec<String> = ifs.collect();
            match place.way {
                _ if ifs.is_empty() => out.push_str(&inner),
                Way::Named => out.push_str(&format!("{inner}: ({}else {{ {inner} }})", ifs.join("else "))),
                Way::Many { is_made } => {
                    let number = place.changes[0].0;
                    let [open, made] = if is_made { ["(", ").into_iter()"] } else { [""; 2] };
                    out.push_str(&format!(
                        "/*+{number}*/{open}{inner}{made}\
                         .take(if crate::mutant({number}) {{ 1 }} else {{ usize::MAX }})/*~{number}*/"
                    ));
                }
                Way::Instead => out.push_str(&format!("({}else {{ {inner} }})", ifs.join("else "))),
                Way::Without => out.push_str(&format!("{}else {{ {inner} }}", ifs.join("else "))),
                Way::First => out.push_str(&format!("{}{inner}", ifs.concat())),
            }
        }
        out.push_str(&self.source[at..range.end]);
        out
    }

    fn text(&self, span: Span) -> &'s str {
        &self.source[span.byte_range()]
    }

    /// A change of [`Kinds::Operators`].
    fn change(&mut self, span: Span, way: Way, changes: Vec<(String, String)>) {
        if self.kinds != Kinds::Effects {
            self.put(span, way, changes);
        }
    }

    /// A change of [`Kinds::Effects`].
    fn forget(&mut self, span: Span, way: Way, what: String, text: &str) {
        if self.kinds != Kinds::Operators {
            self.put(span, way, vec![(what, text.to_owned())]);
        }
    }

    /// See [`DEFAULTS`].
    fn is_default(&self, value: &syn::Expr) -> bool {
        let text = self.text(value.span());
        match value {
            _ if DEFAULTS.contains(&text) || text.ends_with("::default()") => true,
            syn::Expr::Repeat(repeat) => self.is_default(&repeat.expr),
            syn::Expr::Call(call) if call.args.len() == 1 => {
                let made = self.text(call.func.span()).rsplit("::").next().unwrap_or("");
                let is_made = made == "new" || made != "Some" && made.starts_with(char::is_uppercase);
                is_made && self.is_default(&call.args[0])
            }
            _ => false,
        }
    }

    /// As many characters of a text as a report has room for, on one line.
    fn short(&self, span: Span) -> String {
        let text: String = self.text(span).split_whitespace().collect::<Vec<_>>().join(" ");
        text.chars().take(40).collect()
    }

    fn put(&mut self, span: Span, way: Way, changes: Vec<(String, String)>) {
        if self.is_const || changes.is_empty() {
            return;
        }
        let line = span.start().line;
        let mut place = Place { range: span.byte_range(), way, changes: Vec::new() };
        if way == Way::First {
            place.range = place.range.start + 1..place.range.start + 1;
        }
        for (what, text) in changes {
            place.changes.push((self.next, text));
            self.mutants.push(Mutant { line, function: self.function.clone(), what });
            self.next += 1;
        }
        self.places.push(place);
    }

    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let before = std::mem::replace(&mut self.function, signature.ident.to_string());
        let was_const = std::mem::replace(&mut self.is_const, signature.constness.is_some());
        let values: &[&str] = match &signature.output {
            syn::ReturnType::Default => &["()"],
            syn::ReturnType::Type(_, kind) => match self.text(kind.span()) {
                "bool" => &["true", "false"],
                "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "u128" => &["0", "1"],
                text if text.starts_with("Option<") => &["None"],
                _ => &[],
            },
        };
        if !block.stmts.is_empty() {
            let is_body = |value: &&&str| matches!(&block.stmts[..], [one] if self.text(one.span()) == **value);
            let values = values.iter().filter(|value| !is_body(value));
            let changes = values.map(|value| (format!("is {value}"), format!("return {value};"))).collect();
            self.change(block.span(), Way::First, changes);
        }
        visit::visit_block(self, block);
        (self.function, self.is_const) = (before, was_const);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && {
                let syn::Meta::List(list) = &attribute.meta else { return false };
                let text = list.tokens.to_string();
                text.contains("test") || text.contains("loom") || text.contains("watched")
            }
    })
}

/// A statement for the sake of what it does, whose failure is handed on or left alone.
fn is_step(statement: &syn::Stmt) -> bool {
    let is_call = |expr: &syn::Expr| matches!(expr, syn::Expr::Call(_) | syn::Expr::MethodCall(_));
    match statement {
        syn::Stmt::Expr(syn::Expr::Try(tried), Some(_)) => is_call(&tried.expr),
        syn::Stmt::Local(syn::Local { pat: syn::Pat::Wild(_), init: Some(init), .. }) => is_call(&init.expr),
        _ => false,
    }
}

fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(both) => has_let(&both.left) || has_let(&both.right),
        _ => false,
    }
}

fn others(op: &str) -> &'static [&'static str] {
    match op {
        "==" => &["!="],
        "!=" => &["=="],
        "<" => &[">=", "<="],
        "<=" => &[">", "<"],
        ">" => &["<=", ">="],
        ">=" => &["<", ">"],
        "&&" => &["||"],
        "||" => &["&&"],
        "+" | "*" => &["-"],
        "-" | "%" => &["+"],
        "/" => &["*"],
        "<<" => &[">>"],
        ">>" => &["<<"],
        "&" => &["|"],
        "|" => &["&"],
        "+=" | "*=" => &["-="],
        "-=" | "/=" => &["+="],
        "|=" => &["&="],
        "&=" => &["|="],
        "^" => &["|"],
        _ => &[],
    }
}

impl<'a> Visit<'a> for Found<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let is_debug = item.trait_.as_ref().is_some_and(|(_, path, _)| self.text(path.span()).ends_with("Debug"));
        if !is_test(&item.attrs) && !is_debug {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.body(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.body(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = item.default.as_ref().filter(|_| !is_test(&item.attrs)) {
            self.body(&item.sig, block);
        }
    }

    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_item_struct(&mut self, _: &'a syn::ItemStruct) {}
    fn visit_item_enum(&mut self, _: &'a syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    // The length is a constant.
    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, both: &'a syn::ExprBinary) {
        let op = self.text(both.op.span());
        if !has_let(&both.left) && !has_let(&both.right) {
            let (left, right) = (self.text(both.left.span()), self.text(both.right.span()));
            let is_change = op.ends_with('=') && !matches!(op, "==" | "!=" | "<=" | ">=");
            let change = |other: &&str| {
                let text =
                    if is_change { format!("{left} {other} {right}") } else { format!("({left}) {other} ({right})") };
                (format!("{op} is {other}"), text)
            };
            self.change(both.span(), Way::Instead, others(op).iter().map(change).collect());
        }
        visit::visit_expr_binary(self, both);
    }

    fn visit_expr_unary(&mut self, one: &'a syn::ExprUnary) {
        let op = match one.op {
            syn::UnOp::Not(_) => "!",
            syn::UnOp::Neg(_) if !matches!(*one.expr, syn::Expr::Lit(_)) => "-",
            _ => "",
        };
        if !op.is_empty() {
            let text = self.text(one.expr.span()).to_owned();
            self.change(one.span(), Way::Instead, vec![(format!("without {op}"), text)]);
        }
        visit::visit_expr_unary(self, one);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        if let Some((_, guard)) = &arm.guard
            && !has_let(guard)
        {
            let change = |value: &str| (format!("guard is {value}"), value.to_owned());
            self.change(guard.span(), Way::Instead, vec![change("true"), change("false")]);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_stmt(&mut self, statement: &'a syn::Stmt) {
        let attributes = match statement {
            syn::Stmt::Expr(syn::Expr::Call(call), Some(_)) => Some(&call.attrs),
            syn::Stmt::Expr(syn::Expr::MethodCall(call), Some(_)) => Some(&call.attrs),
            syn::Stmt::Expr(syn::Expr::Assign(assign), Some(_)) => Some(&assign.attrs),
            _ => None,
        };
        if attributes.is_some_and(|attributes| is_test(attributes)) {
            return;
        }
        if let syn::Stmt::Expr(expr, _) = statement
            && attributes.is_some()
        {
            let short = self.short(expr.span());
            self.change(statement.span(), Way::Without, vec![(format!("without {short}"), String::new())]);
        }
        if is_step(statement) {
            let short = self.short(statement.span());
            self.forget(statement.span(), Way::Without, format!("without step {short}"), "");
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_for_loop(&mut self, each: &'a syn::ExprForLoop) {
        let short = self.short(each.expr.span());
        self.forget(each.expr.span(), Way::Many { is_made: true }, format!("first of {short}"), "");
        visit::visit_expr_for_loop(self, each);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let name = call.method.to_string();
        let arguments = usize::from(name != "collect");
        if GOES_THROUGH.contains(&&*name) && call.args.len() == arguments {
            self.forget(call.receiver.span(), Way::Many { is_made: false }, format!("{name} of the first"), "");
        }
        // A state's writer.
        if let ("flag", Some(packed), 1) = (&*name, call.args.first(), call.args.len())
            && !matches!(packed, syn::Expr::Lit(_))
        {
            let what = format!("flag {} is packed as false", self.short(packed.span()));
            self.forget(packed.span(), Way::Instead, what, "false");
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_field_value(&mut self, field: &'a syn::FieldValue) {
        if !self.is_default(&field.expr) && !is_test(&field.attrs) {
            let way = if field.colon_token.is_some() { Way::Instead } else { Way::Named };
            let what = format!("{} is its default", self.text(field.member.span()));
            self.forget(field.expr.span(), way, what, "Default::default()");
        }
        // A name alone holds nothing else.
        if field.colon_token.is_some() {
            visit::visit_field_value(self, field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats_of(source: &str, kinds: Kinds) -> Vec<String> {
        Found::of(source, 1, kinds).unwrap().mutants.into_iter().map(|mutant| mutant.what).collect()
    }

    fn whats(source: &str) -> Vec<String> {
        whats_of(source, Kinds::Operators)
    }

    #[test]
    fn what_decides_is_changed_and_tests_constants_and_assertions_are_not() {
        assert_eq!(
            whats("fn a(b: u8) { if b < 3 && !c() { d(b); } }"),
            ["is ()", "&& is ||", "< is >=", "< is <=", "without !", "without d(b);"]
                .map(|what| what.trim_end_matches(';'))
        );
        assert_eq!(whats("fn a() { #[cfg(test)] b(1); }"), ["is ()"]);
        assert_eq!(whats("fn a() -> bool { false }"), ["is true"]);
        assert_eq!(whats("#[cfg(test)] mod t { fn a() { b(1 + 1); } } const C: u8 = 1 + 1;"), [""; 0]);
        assert_eq!(whats("const fn a() -> u64 { 1 + 1 } fn b() -> Vec<u8> { assert!(1 < 2); c([0; 1 + 1]) }"), [""; 0]);
    }

    #[test]
    fn a_mutant_stands_beside_what_was_and_can_be_left_out() {
        let source = "fn a() -> bool { b == 1 }";
        let found = Found::of(source, 7, Kinds::All).unwrap();
        assert_eq!(found.render(&|_| false), source);
        assert_eq!(
            found.render(&|number| number == 9),
            "fn a() -> bool { (if crate::mutant(9) {/*9*/ (b) != (1) /*~9*/} else { b == 1 }) }"
        );
        // Numbers go by place: both results of the function come first.
        assert!(found.render(&|number| number == 8).contains("{/*8*/ return false; /*~8*/}"));
    }

    /// A source with one change.
    fn changed(source: &str, what: &str) -> String {
        let found = Found::of(source, 1, Kinds::Effects).unwrap();
        let at = found.mutants.iter().position(|mutant| mutant.what == what).unwrap_or_else(|| panic!("{what}")) as u32;
        found.render(&|number| number == at + 1)
    }

    #[test]
    fn a_step_of_a_commit_is_left_out() {
        let source = "fn a() -> R { b.lock()?; let _ = c(); let d = e()?; f(); Ok(d) }";
        assert_eq!(whats_of(source, Kinds::Effects), ["without step b.lock()?;", "without step let _ = c();"]);
        assert!(
            changed(source, "without step b.lock()?;").contains("{/*1*/  /*~1*/} else { b.lock()?; } let _ = c();")
        );
        assert!(changed(source, "without step let _ = c();").contains("{/*2*/  /*~2*/} else { let _ = c(); }"));
    }

    #[test]
    fn a_rule_about_many_is_applied_to_the_first() {
        let source = "fn a() { for b in 0..c { d(b); } }";
        let first = "in /*+1*/(0..c).into_iter().take(if crate::mutant(1) { 1 } else { usize::MAX })/*~1*/ {";
        assert!(changed(source, "first of 0..c").contains(first), "{}", changed(source, "first of 0..c"));
        let source = "fn a() -> bool { b.iter().all(|it| it.is_c()) && b.all() && b.iter().collect() }";
        assert_eq!(whats_of(source, Kinds::Effects), ["all of the first", "collect of the first"]);
        let first = "/*+1*/b.iter().take(if crate::mutant(1) { 1 } else { usize::MAX })/*~1*/.all(|it| it.is_c())";
        assert!(changed(source, "all of the first").contains(first));
        // Two in one chain, and one inside the other.
        let source = "fn a() { b.iter().for_each(|it| it.iter().for_each(c)); }";
        let found = Found::of(source, 1, Kinds::Effects).unwrap();
        let both = found.render(&|_| true);
        assert!(both.contains("/*+1*/b.iter().take(") && both.contains("|it| /*+2*/it.iter().take("), "{both}");
    }

    #[test]
    fn a_field_is_forgotten_where_a_struct_is_made() {
        let defaults = "S { a: AtomicU64::new(0), b: VSpan(0), c: [None; 3], d: Padded::new(Mutex::new(false)) }";
        assert_eq!(
            whats_of(&format!("fn a() {{ {defaults}; S {{ e: Some(0) }} }}"), Kinds::Effects),
            ["e is its default"]
        );
        let source = "fn a() -> S { S { fua, cost: b(c), kind: 0, lock: Mutex::default(), ..d } }";
        assert_eq!(whats_of(source, Kinds::Effects), ["fua is its default", "cost is its default"]);
        let named = "S { fua: (if crate::mutant(1) {/*1*/ Default::default() /*~1*/} else { fua }), cost";
        assert!(changed(source, "fua is its default").contains(named));
        let valued = "cost: (if crate::mutant(2) {/*2*/ Default::default() /*~2*/} else { b(c) }), kind: 0, lock: Mutex::default(), ..d";
        assert!(changed(source, "cost is its default").contains(valued));
        assert_eq!(
            whats_of("fn a(S { b, .. }: S) { #[cfg(test)] c(); }", Kinds::Effects),
            [""; 0],
            "a pattern makes none"
        );
    }

    #[test]
    fn a_flag_is_cleared_where_it_is_packed() {
        let source = "fn a() { writer.flag(self.b); writer.flag(false); c.flag(); }";
        assert_eq!(whats_of(source, Kinds::Effects), ["flag self.b is packed as false"]);
        let cleared = "writer.flag((if crate::mutant(1) {/*1*/ false /*~1*/} else { self.b })); writer.flag(false);";
        assert!(changed(source, "flag self.b is packed as false").contains(cleared));
    }

    #[test]
    fn each_kind_is_found_by_its_name_and_all_are_both() {
        let source = "fn a() -> R { b(1 + 1)?; c(); for d in e {} S { f } }";
        let [one, other, both] =
            ["operators", "effects", "all"].map(|name| whats_of(source, Kinds::read(name).unwrap()));
        assert!(one.len() == 2 && other.len() == 3 && both.len() == 5, "{one:?} {other:?} {both:?}");
        assert_eq!(Kinds::read("none"), None);
    }
}
