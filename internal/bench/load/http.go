package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"
)

// httpConn is a persistent HTTP/1.1 connection. It implements only as much of HTTP as answers of Go's server
// need: a status line, the headers that frame the body, and a body of known length or in chunks. net/http's
// client costs several times as much CPU, which on a small machine the server needs.
type httpConn struct {
	address  string
	patience time.Duration
	conn     net.Conn
	r        *bufio.Reader
	body     bytes.Buffer
}

// open connects to the server of a spec.
func (c *httpConn) open(spec *Spec) error {
	to, err := url.Parse(spec.URL)
	if err != nil {
		return err
	}
	c.address, c.patience = to.Host, spec.Patience
	return c.dial()
}

func (c *httpConn) dial() error {
	conn, err := net.DialTimeout("tcp", c.address, c.patience)
	if err != nil {
		return err
	}
	if c.r == nil {
		c.r = bufio.NewReaderSize(nil, 4096)
	}
	c.conn = conn
	c.r.Reset(conn)
	return nil
}

func (c *httpConn) close() {
	if c.conn != nil {
		_ = c.conn.Close() // no caller waits for it
		c.conn = nil
	}
}

// roundTrip sends a complete request and reads the complete answer. The body is valid until the next call.
// After an error the connection is closed, and the next call opens a new one.
func (c *httpConn) roundTrip(request []byte) (status int, body []byte, err error) {
	if c.conn == nil {
		if err := c.dial(); err != nil {
			return 0, nil, err
		}
	}
	if err = c.conn.SetDeadline(time.Now().Add(c.patience)); err == nil {
		if _, err = c.conn.Write(request); err == nil {
			status, err = c.read()
		}
	}
	if err != nil {
		c.close()
	}
	return status, c.body.Bytes(), err
}

// answerHead is the body's framing, from the headers.
type answerHead struct {
	status  int
	length  int64 // -1: unknown
	chunked bool
	closes  bool
}

func (c *httpConn) read() (int, error) {
	c.body.Reset()
	h, err := c.readHead()
	if err != nil {
		return 0, err
	}
	switch {
	case h.chunked:
		err = c.readChunks()
	case h.length >= 0:
		_, err = io.CopyN(&c.body, c.r, h.length)
	default:
		err = errors.New("the answer has no length")
	}
	if h.closes {
		c.close()
	}
	return h.status, err
}

func (c *httpConn) readHead() (answerHead, error) {
	h := answerHead{length: -1}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return h, fmt.Errorf("not an HTTP/1.1 answer: %.40q", line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, err
	}
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		if err := h.field(line); err != nil {
			return h, err
		}
	}
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	connection       = []byte("Connection")
)

func (h *answerHead) field(line []byte) (err error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	// Most headers are irrelevant; their length rules them out without comparing text.
	switch len(name) {
	case len(contentLength):
		if bytes.EqualFold(name, contentLength) {
			h.length, err = strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
		}
	case len(transferEncoding):
		if bytes.EqualFold(name, transferEncoding) {
			h.chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
		}
	case len(connection):
		if bytes.EqualFold(name, connection) {
			h.closes = bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
		}
	}
	return err
}

// readChunks reads a chunked body, including the final empty chunk. Unary Connect answers have no trailers over
// HTTP/1.1.
func (c *httpConn) readChunks() error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return fmt.Errorf("chunk size: %w", err)
		}
		if _, err = io.CopyN(&c.body, c.r, size); err != nil {
			return err
		}
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(bytes.TrimRight(line, "\r\n")) != 0 {
			return errors.New("a chunk does not end where it should")
		}
		if size == 0 {
			return nil
		}
	}
}
