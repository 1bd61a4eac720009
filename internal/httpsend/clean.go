package httpsend

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

const maxText = 300 // bytes of a provider's error text

var (
	// numbers matches any digits that may be part of a phone number or a code.
	numbers   = regexp.MustCompile(`\+?[0-9](?:[0-9 ().*-]{2,}[0-9])+`)
	addresses = regexp.MustCompile(`[^\s"'<>=:]+@[^\s"'<>]+`)
)

// Clean returns a provider's error text without the message's content, its recipient, and other addresses and numbers.
func Clean(m *send.Message, text string) string {
	if m != nil {
		hide := []string{m.Recipient, strings.TrimPrefix(m.Recipient, "+"), m.Content.Text, m.Content.Subject}
		for _, p := range m.Content.Params {
			hide = append(hide, p.Value)
		}
		for _, params := range m.Content.ProviderParams {
			for _, p := range params {
				hide = append(hide, p.Value)
			}
		}
		for _, h := range hide {
			if len(h) > 1 {
				text = strings.ReplaceAll(text, h, "…")
			}
		}
	}
	text = addresses.ReplaceAllString(text, "…")
	text = numbers.ReplaceAllString(text, "…")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	return Cut(text, maxText)
}

// Cut truncates text to at most n bytes, between characters.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Code joins parts to a failure code: at most 64 bytes of letters, digits, _, . and -.
func Code(parts ...string) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '_'
	}, strings.Join(parts, "_"))
	if text == "" {
		return "unknown"
	}
	return Cut(text, 64)
}
