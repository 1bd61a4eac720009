package sms

// TwilioSignature signs as Twilio does.
var TwilioSignature = twilioSignature
