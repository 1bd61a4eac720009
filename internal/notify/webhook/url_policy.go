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

	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// URLPolicy restricts the addresses of endpoints. The zero URLPolicy allows https on ports 443 and 8443 at public
// addresses.
type URLPolicy struct {
	// Allow lists addresses that are allowed although they are not public.
	Allow []netip.Prefix
	// HTTP also allows http, on ports 80 and 8080.
	HTTP bool
	// Ports lists further allowed ports; 0: all ports.
	Ports []uint16
	// Resolver resolves names; nil: the system's.
	Resolver *net.Resolver
}

// notPublic lists special-purpose addresses of the IANA registries, and Azure's public address for its own machines.
var notPublic = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
	"169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
	"192.175.48.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")

var (
	unicast6 = netip.MustParsePrefix("2000::/3")     // all public IPv6 addresses
	nat64    = netip.MustParsePrefix("64:ff9b::/96") // NAT64: an IPv4 address in the last 4 bytes
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

// Address returns an error if the address is not allowed.
func (p *URLPolicy) Address(to netip.AddrPort) error {
	a := to.Addr().Unmap()
	if a.Zone() != "" || !a.IsValid() || !public(a) &&
		!slices.ContainsFunc(p.Allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return &httpsend.Blocked{Reason: "the endpoint is at an address that is not public"}
	}
	if !p.port(to.Port()) {
		return &httpsend.Blocked{Reason: "the endpoint is at a port that is not allowed"}
	}
	return nil
}

func (p *URLPolicy) port(n uint16) bool {
	return n == 443 || n == 8443 || p.HTTP && (n == 80 || n == 8080) || slices.Contains(p.Ports, n) ||
		slices.Contains(p.Ports, 0)
}

// Dial returns a dial function that allows only addresses that the policy allows. It checks the resolved address right
// before connecting, which defeats DNS rebinding.
func (p *URLPolicy) Dial(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout, Resolver: p.Resolver, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &httpsend.Blocked{Reason: "the endpoint's address is invalid"}
		}
		return p.Address(to)
	}}
	return d.DialContext
}

// MaxURL limits a URL, in bytes.
const MaxURL = 2048

// URL checks an endpoint's URL without resolving it. The errors continue a sentence after "url ".
func (p *URLPolicy) URL(text string) error {
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
	case u.Scheme != "https" && (u.Scheme != "http" || !p.HTTP):
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
	if !p.port(port) {
		return fmt.Errorf("has port %d, which is not allowed", port)
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && p.Address(netip.AddrPortFrom(a, port)) != nil {
		return errors.New("has an IP address that is not public")
	}
	return nil
}
