package gateway

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
)

// minKeyBits is the size that RSA2 and WeChat require.
const minKeyBits = 2048

// PrivateKey parses an RSA key: PKCS 8 or PKCS 1, in PEM or, as Alipay's tools write it, in base64 alone.
func PrivateKey(text string) (*rsa.PrivateKey, error) {
	der, _, err := keyBytes(text)
	if err != nil {
		return nil, err
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, sizeOf(&key.PublicKey)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	key, ok := parsed.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("is not an RSA private key in PKCS 8 or PKCS 1") // omit the input
	}
	return key, sizeOf(&key.PublicKey)
}

// PublicKey parses an RSA public key in PEM or base64, or the key of a certificate. The certificate is nil without one.
func PublicKey(text string) (*rsa.PublicKey, *x509.Certificate, error) {
	der, kind, err := keyBytes(text)
	if err != nil {
		return nil, nil, err
	}
	var parsed any
	var cert *x509.Certificate
	switch {
	case kind == "CERTIFICATE":
		if cert, err = x509.ParseCertificate(der); err == nil {
			parsed = cert.PublicKey
		}
	case strings.Contains(kind, "PRIVATE"):
		return nil, nil, errors.New("is a private key, not the provider's public key")
	default:
		if parsed, err = x509.ParsePKIXPublicKey(der); err != nil {
			parsed, err = x509.ParsePKCS1PublicKey(der)
		}
	}
	key, ok := parsed.(*rsa.PublicKey)
	if err != nil || !ok {
		return nil, nil, errors.New("is not an RSA public key or certificate")
	}
	return key, cert, sizeOf(key)
}

func keyBytes(text string) (der []byte, kind string, err error) {
	text = strings.TrimSpace(text)
	if block, rest := pem.Decode([]byte(text)); block != nil {
		if len(strings.TrimSpace(string(rest))) > 0 {
			return nil, "", errors.New("has more than one PEM block")
		}
		return block.Bytes, block.Type, nil
	}
	der, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil || len(der) == 0 {
		return nil, "", errors.New("is neither PEM nor base64")
	}
	return der, "", nil
}

func sizeOf(key *rsa.PublicKey) error {
	if key.N.BitLen() < minKeyBits {
		return errors.New("is too short: 2048 bits are required")
	}
	return nil
}

// SignRSA returns the base64 of a signature by SHA256-RSA (PKCS 1, version 1.5).
func SignRSA(key *rsa.PrivateKey, text []byte) (string, error) {
	hash := sha256.Sum256(text)
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, hash[:])
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(signature), nil
}

// VerifiesRSA reports whether a base64 signature by SHA256-RSA is valid.
func VerifiesRSA(key *rsa.PublicKey, text []byte, signature string) bool {
	raw, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return false
	}
	hash := sha256.Sum256(text)
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, hash[:], raw) == nil
}
