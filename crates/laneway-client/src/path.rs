//! Percent-encoding of path segments and query values.

/// Appends `/segment`, everything outside RFC 3986's unreserved characters encoded.
pub(crate) fn push_segment(path: &mut String, segment: &str) {
    path.push('/');
    push_encoded(path, segment);
}

/// Appends `name=value` with `?` or `&` before it.
pub(crate) fn push_query(path: &mut String, name: &str, value: &str) {
    path.push(if path.contains('?') { '&' } else { '?' });
    path.push_str(name);
    path.push('=');
    push_encoded(path, value);
}

fn push_encoded(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            path.push('%');
            for digit in [byte >> 4, byte & 0xf] {
                let digit = char::from_digit(digit.into(), 16).expect("a half byte is one hex digit");
                path.push(digit.to_ascii_uppercase());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_encoded() {
        let mut path = String::from("/pop");
        push_segment(&mut path, "a/b c:ü");
        push_query(&mut path, "g", "x&y");
        push_query(&mut path, "n", "1");
        assert_eq!(path, "/pop/a%2Fb%20c%3A%C3%BC?g=x%26y&n=1");
    }
}
