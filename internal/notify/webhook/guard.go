package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
)

// Guard says where endpoints may be. The zero Guard: https, on ports 443 and 8443, at public addresses.
type Guard struct {
	// Allow are addresses that may be reached although they are not public.
	Allow []netip.Prefix
	// HTTP allows http too, on ports 80 and 8080.
	HTTP bool
	// Ports that may be used besides; 0 among them: all.
	Ports []uint16
	// Resolver for names; nil: the system's.
	Resolver *net.Resolver
}

// notPublic are the parts of the address space that are not of the public internet, by the IANA registries of
// special-purpose addresses, and one that is: Azure's address for its own machines.
var notPublic = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
	"169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
	"192.175.48.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")

var (
	unicast6 = netip.MustParsePrefix("2000::/3")     // all public addresses of version 6
	nat64    = netip.MustParsePrefix("64:ff9b::/96") // a version 4 address behind a translator, in the last 4 bytes
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

func public(a netip.Addr) bool {
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.Is6() && !unicast6.Contains(a) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Address tells why an address may not be reached, or nil.
func (g *Guard) Address(to netip.AddrPort) error {
	a := to.Addr().Unmap()
	if a.Zone() != "" || !a.IsValid() || !public(a) &&
		!slices.ContainsFunc(g.Allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return &httpsend.Blocked{Reason: "the endpoint is at an address that is not public"}
	}
	if !g.port(to.Port()) {
		return &httpsend.Blocked{Reason: "the endpoint is at a port that is not allowed"}
	}
	return nil
}

func (g *Guard) port(n uint16) bool {
	return n == 443 || n == 8443 || g.HTTP && (n == 80 || n == 8080) || slices.Contains(g.Ports, n) ||
		slices.Contains(g.Ports, 0)
}

// Dial connects to addresses that may be reached. It looks at the address itself, after names were resolved, when it is
// about to connect: a name that resolves differently the next moment gains nothing.
func (g *Guard) Dial(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout, Resolver: g.Resolver, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &httpsend.Blocked{Reason: "the endpoint's address is invalid"}
		}
		return g.Address(to)
	}}
	return d.DialContext
}

// MaxURL is how long a URL may be, in bytes.
const MaxURL = 2048

// URL checks what can be told of an endpoint's URL without asking for its address. The errors go on after "url ".
func (g *Guard) URL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return errors.New("is not an absolute URL")
	case len(text) > MaxURL:
		return fmt.Errorf("is longer than %d bytes", MaxURL)
	case u.User != nil:
		return errors.New("must not contain a user or a password")
	case u.Fragment != "" || strings.HasSuffix(text, "#"):
		return errors.New("must not have a fragment")
	case u.Scheme != "https" && (u.Scheme != "http" || !g.HTTP):
		return errors.New("must begin with https://")
	}
	port := uint16(443)
	if u.Scheme == "http" {
		port = 80
	}
	if text := u.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return errors.New("has an invalid port")
		}
		port = uint16(n)
	}
	if !g.port(port) {
		return fmt.Errorf("has port %d, which is not allowed", port)
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && g.Address(netip.AddrPortFrom(a, port)) != nil {
		return errors.New("has an IP address that is not public")
	}
	return nil
}
