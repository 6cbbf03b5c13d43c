/* negative_prompt.c - the text that the released model steers away from, byte for byte (Sand AI,
 * Apache-2.0).  The uncond branch was conditioned on these very bytes; a test holds their SHA-256. */
#include "pipeline/negative_prompt.h"

const char m2_released_negative_prompt[] =
    "Bright tones, overexposed, static, blurred details, subtitles, style, works, paintings, "
    "images, static, overall gray, worst quality, low quality, JPEG compression residue, "
    "ugly, incomplete, extra fingers, poorly drawn hands, poorly drawn faces, deformed, "
    "disfigured, misshapen limbs, fused fingers, still picture, messy background, three "
    "legs, many people in the background, walking backwards, low quality, worst quality, "
    "poor quality, noise, background noise, hiss, hum, buzz, crackle, static, compression "
    "artifacts, MP3 artifacts, digital clipping, distortion, muffled, muddy, unclear, echo, "
    "reverb, room echo, over-reverberated, hollow sound, distant, washed out, harsh, shrill, "
    "piercing, grating, tinny, thin sound, boomy, bass-heavy, flat EQ, over-compressed, "
    "abrupt cut, jarring transition, sudden silence, looping artifact, music, instrumental, "
    "sirens, alarms, crowd noise, unrelated sound effects, chaotic, disorganized, messy, "
    "cheap sound, emotionless, flat delivery, deadpan, lifeless, apathetic, robotic, "
    "mechanical, monotone, flat intonation, undynamic, boring, reading from a script, AI "
    "voice, synthetic, text-to-speech, TTS, insincere, fake emotion, exaggerated, overly "
    "dramatic, melodramatic, cheesy, cringey, hesitant, unconfident, tired, weak voice, "
    "stuttering, stammering, mumbling, slurred speech, mispronounced, bad articulation, "
    "lisp, vocal fry, creaky voice, mouth clicks, lip smacks, wet mouth sounds, heavy "
    "breathing, audible inhales, plosives, p-pops, coughing, clearing throat, sneezing, "
    "speaking too fast, rushed, speaking too slow, dragged out, unnatural pauses, awkward "
    "silence, choppy, disconnected, multiple speakers, two voices, background talking, out "
    "of tune, off-key, autotune artifacts";
