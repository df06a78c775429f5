//! Tensors from picture files: PNG and JPEG, stretched to the size that the model's input has,
//! as `(value * scale - mean) / std` for each channel.

use half::f16;
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};
use std::path::Path;
use symphony_gpu::{DataType, TensorSpec};

/// The endings of files that are read as pictures, in lower case.
pub(super) const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// How the values of pixels, 0 to 255, become elements of an FP32 or FP16 tensor.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PixelScale {
    /// The factor of a value.
    pub(crate) scale: f32,
    /// What is subtracted from the product: for each channel, or one for all.
    pub(crate) mean: Vec<f32>,
    /// What the difference is divided by: for each channel, or one for all.
    pub(crate) std: Vec<f32>,
}

impl Default for PixelScale {
    /// Elements from 0 to 1.
    fn default() -> PixelScale {
        PixelScale { scale: 1.0 / 255.0, mean: vec![0.0], std: vec![1.0] }
    }
}

/// A reader of pictures for one input of a model.
#[derive(Clone, Debug)]
pub(super) struct PictureReader {
    channels: usize,
    height: u32,
    width: u32,
    channels_first: bool,
    datatype: DataType,
    pixels: PixelScale,
}

impl PictureReader {
    /// Makes the reader for an input of the shape [C, H, W] or [H, W, C], with C of 1 (grey) or 3
    /// (red, green, blue).
    ///
    /// Errors: the input takes no picture, or `pixels` does not suit it.
    pub(super) fn new(input: &TensorSpec, pixels: PixelScale) -> Result<PictureReader, String> {
        let (name, shape, datatype) = (&input.name, &input.shape, input.datatype);
        let is_channels = |size: usize| size == 1 || size == 3;
        let (channels, height, width, channels_first) = match shape[..] {
            [channels, height, width] if is_channels(channels) => (channels, height, width, true),
            [height, width, channels] if is_channels(channels) => (channels, height, width, false),
            _ => {
                return Err(format!(
                    "the input \"{name}\" has rows of the shape {shape:?}, and a picture has [C, H, W] or \
                     [H, W, C] with C of 1 or 3; give .npy files"
                ));
            }
        };
        if !matches!(datatype, DataType::Fp32 | DataType::Fp16 | DataType::Uint8) {
            return Err(format!(
                "the input \"{name}\" is of type {datatype}, and pictures become FP32, FP16 or UINT8; give \
                 .npy files"
            ));
        }
        if datatype == DataType::Uint8 && pixels != PixelScale::default() {
            return Err(format!(
                "the input \"{name}\" is of type UINT8 and gets the pixels as they are; leave out --scale, \
                 --mean and --std"
            ));
        }
        for (flag, values) in [("--mean", &pixels.mean), ("--std", &pixels.std)] {
            if values.len() != 1 && values.len() != channels {
                let given = values.len();
                return Err(format!(
                    "{flag} has {given} values; give one, or one for each of {channels} channels"
                ));
            }
        }
        let side =
            |size: usize| u32::try_from(size).map_err(|_| format!("{shape:?} is no size of a picture"));
        Ok(PictureReader {
            channels,
            height: side(height)?,
            width: side(width)?,
            channels_first,
            datatype,
            pixels,
        })
    }

    /// Reads a picture, and returns the bytes of its tensor. Its kind is found from its content.
    ///
    /// Errors: the file can't be read, or is no whole picture.
    pub(super) fn read(&self, file: &Path) -> Result<Vec<u8>, String> {
        let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format);
        let reader = reader.map_err(|error| format!("can't be read ({error})"))?;
        let picture = reader.decode().map_err(|error| format!("is no picture that can be read ({error})"))?;
        Ok(self.tensor(&picture))
    }

    fn tensor(&self, picture: &DynamicImage) -> Vec<u8> {
        let stretched = picture.resize_exact(self.width, self.height, FilterType::Triangle);
        let bytes = if self.channels == 1 {
            stretched.into_luma8().into_raw()
        } else {
            stretched.into_rgb8().into_raw()
        };
        let (area, channels) = (self.height as usize * self.width as usize, self.channels);
        let mut tensor = Vec::with_capacity(bytes.len() * self.datatype.size_bytes());
        for at in 0..bytes.len() {
            let (pixel, channel) = match self.channels_first {
                true => (at % area, at / area),
                false => (at / channels, at % channels),
            };
            self.push(&mut tensor, bytes[pixel * channels + channel], channel);
        }
        tensor
    }

    fn push(&self, tensor: &mut Vec<u8>, value: u8, channel: usize) {
        let PixelScale { scale, mean, std } = &self.pixels;
        let of_channel = |values: &[f32]| values[channel.min(values.len() - 1)];
        let element = (f32::from(value) * scale - of_channel(mean)) / of_channel(std);
        match self.datatype {
            DataType::Uint8 => tensor.push(value),
            DataType::Fp16 => tensor.extend_from_slice(&f16::from_f32(element).to_le_bytes()),
            _ => tensor.extend_from_slice(&element.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;

    fn input(shape: &[usize], datatype: DataType) -> TensorSpec {
        TensorSpec { name: "x".into(), datatype, shape: shape.to_vec() }
    }

    fn two_pixels() -> DynamicImage {
        RgbImage::from_raw(2, 1, vec![0, 51, 102, 255, 204, 153]).unwrap().into()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn the_layout_is_found_from_the_shape() {
        let tensor = |shape: &[usize]| {
            let reader = PictureReader::new(&input(shape, DataType::Uint8), PixelScale::default());
            reader.unwrap().tensor(&two_pixels())
        };
        assert_eq!(tensor(&[3, 1, 2]), [0, 255, 51, 204, 102, 153]);
        assert_eq!(tensor(&[1, 2, 3]).len(), 6 / 3 * 3);
        assert_eq!(tensor(&[2, 2, 3]), [0, 51, 102, 255, 204, 153, 0, 51, 102, 255, 204, 153]);
    }

    #[test]
    fn each_channel_has_its_mean_and_deviation() {
        let pixels = PixelScale { scale: 1.0, mean: vec![0.0, 1.0, 2.0], std: vec![1.0, 2.0, 4.0] };
        let reader = PictureReader::new(&input(&[3, 1, 2], DataType::Fp32), pixels).unwrap();
        assert_eq!(floats(&reader.tensor(&two_pixels())), [0.0, 255.0, 25.0, 101.5, 25.0, 37.75]);
        let halves = PictureReader::new(&input(&[3, 1, 2], DataType::Fp16), PixelScale::default()).unwrap();
        assert_eq!(halves.tensor(&two_pixels())[2..4], f16::from_f32(1.0).to_le_bytes());
    }

    #[test]
    fn an_input_that_takes_no_picture_is_refused() {
        let refused = |shape: &[usize], datatype, pixels| {
            PictureReader::new(&input(shape, datatype), pixels).unwrap_err()
        };
        assert!(refused(&[16], DataType::Fp32, PixelScale::default()).contains("[16]"));
        assert!(refused(&[3, 4, 4], DataType::Int64, PixelScale::default()).contains("INT64"));
        let scaled = PixelScale { scale: 1.0, ..PixelScale::default() };
        assert!(refused(&[3, 4, 4], DataType::Uint8, scaled).contains("--scale"));
        let two = PixelScale { mean: vec![0.5, 0.5], ..PixelScale::default() };
        assert!(refused(&[3, 4, 4], DataType::Fp32, two).contains("--mean has 2 values"));
    }
}
