"""Vision networks as their papers have them, small: each function returns (model, inputs, loss,
targets).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[Tensor, ...], object, tuple[Tensor, ...]]


def classified(model: nn.Module, batch: int, side: int = 32, classes: int = 10) -> Built:
    """A classifier of images."""
    images = torch.randn(batch, 3, side, side)
    return model, (images,), functional.cross_entropy, (torch.randint(0, classes, (batch,)),)


def conv(
    inner: int, outer: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution with its norm and activation."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )


class Head(nn.Module):
    """Pools and classifies."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.pool, self.linear = nn.AdaptiveAvgPool2d(1), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.flatten(self.pool(x), 1))


def alexnet(batch: int = 8) -> Built:
    features = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(),
        nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return classified(features, batch)


def vgg(batch: int = 8) -> Built:
    layers: list[nn.Module] = []
    for inner, outer in ((3, 8), (8, 16), (16, 32)):
        layers += [conv(inner, outer), conv(outer, outer), nn.MaxPool2d(2)]
    return classified(nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)), batch)


class Basic(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = conv(inner, outer, stride=stride)
        self.second = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.second(self.first(x)))
        out += self.short(x)
        return functional.relu(out)


def resnet(batch: int = 8) -> Built:
    blocks = (Basic(8, 8, 1), Basic(8, 16, 2), Basic(16, 32, 2))
    return classified(nn.Sequential(conv(3, 8), *blocks, Head(32)), batch)


class Bottleneck(nn.Module):
    """ResNeXt's block with groups."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(width, width // 2, 1), conv(width // 2, width // 2, groups=groups),
            nn.Conv2d(width // 2, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnext(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(conv(3, 16), Bottleneck(16, 4), Bottleneck(16, 4), Head(16)), batch
    )


class Squeeze(nn.Module):
    """Squeeze-and-excitation, with a view that ends in ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.shape
        weight = self.gate(functional.adaptive_avg_pool2d(x, 1).view(b, c)).view(b, c, 1, 1)
        return x * weight.expand_as(x)


def se_resnet(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(conv(3, 16), Squeeze(16), Basic(16, 32, 2), Squeeze(32), Head(32)), batch
    )


class Dense(nn.Module):
    """DenseNet's block."""

    def __init__(self, width: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(width + growth * n, growth) for n in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def densenet(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(conv(3, 8), Dense(8, 4, 3), nn.AvgPool2d(2), Dense(20, 4, 2), Head(28)), batch
    )


class Inception(nn.Module):
    """GoogLeNet's block."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.one, self.three = conv(inner, 4, 1), nn.Sequential(conv(inner, 4, 1), conv(4, 8))
        self.five = nn.Sequential(conv(inner, 2, 1), conv(2, 4, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inner, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def googlenet(batch: int = 8) -> Built:
    return classified(nn.Sequential(conv(3, 8), Inception(8), Inception(20), Head(20)), batch)


class Inverted(nn.Module):
    """MobileNetV2's block."""

    def __init__(self, width: int, expand: int) -> None:
        super().__init__()
        hidden = width * expand
        self.body = nn.Sequential(
            nn.Conv2d(width, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden), nn.BatchNorm2d(hidden),
            nn.ReLU6(), nn.Conv2d(hidden, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mobilenet_v2(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(conv(3, 8, stride=2), Inverted(8, 2), Inverted(8, 4), Head(8)), batch
    )


def mobilenet_v3(batch: int = 8) -> Built:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish(), Squeeze(16),
        nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.Hardsigmoid(), Head(16),
    )  # fmt: skip
    return classified(body, batch)


class Shuffle(nn.Module):
    """ShuffleNet's block: halves, and a shuffle of channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(conv(half, half, 1), conv(half, half, groups=half))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat((left, self.body(right)), dim=1)
        b, c, h, w = x.size()
        x = x.view(b, 2, c // 2, h, w)
        return torch.transpose(x, 1, 2).contiguous().view(b, -1, h, w)


def shufflenet(batch: int = 8) -> Built:
    return classified(nn.Sequential(conv(3, 16), Shuffle(16), Shuffle(16), Head(16)), batch)


class Fire(nn.Module):
    """SqueezeNet's block."""

    def __init__(self, inner: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, squeeze, 1)
        self.one, self.three = (
            nn.Conv2d(squeeze, expand, 1),
            nn.Conv2d(squeeze, expand, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


def squeezenet(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(8, 4, 8), Head(16)
        ),
        batch,
    )


class Permuted(nn.Module):
    """ConvNeXt's block: channels last inside, with a scale of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out = self.scale * self.down(functional.gelu(self.up(out)))
        return x + out.permute(0, 3, 1, 2)


def convnext(batch: int = 8) -> Built:
    return classified(
        nn.Sequential(nn.Conv2d(3, 16, 4, 4), Permuted(16), Permuted(16), Head(16)), batch
    )


class Attention(nn.Module):
    """Attention as timm writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    """A layer of a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class VisionTransformer(nn.Module):
    """ViT with a class token and learnt positions."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


def vit(batch: int = 8) -> Built:
    return classified(VisionTransformer(), batch)


class Windows(nn.Module):
    """Swin's shifted windows."""

    def __init__(self, width: int, size: int, shift: int) -> None:
        super().__init__()
        self.size, self.shift, self.layer = size, shift, Layer(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        s = self.size
        x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        x = self.layer(x).view(b, h // s, w // s, s, s, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))


class Swin(nn.Module):
    """Swin, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 10)
        self.blocks = nn.Sequential(Windows(16, 4, 0), Windows(16, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patch(x).permute(0, 2, 3, 1)).mean(dim=(1, 2)))


def swin(batch: int = 8) -> Built:
    return classified(Swin(), batch)


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 10)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = x + self.tokens(x.mT).mT
        return self.head((x + self.channels(x)).mean(1))


def mlp_mixer(batch: int = 8) -> Built:
    return classified(Mixer(), batch)


class UNet(nn.Module):
    """U-Net with a transposed convolution and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = conv(3, 8), nn.Sequential(nn.MaxPool2d(2), conv(8, 16))
        self.up, self.merge = nn.ConvTranspose2d(16, 8, 2, 2), conv(16, 8)
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.out(self.merge(torch.cat([skip, self.up(self.low(skip))], dim=1)))


def unet(batch: int = 8) -> Built:
    targets = torch.randint(0, 5, (batch, 32, 32))
    return UNet(), (torch.randn(batch, 3, 32, 32),), functional.cross_entropy, (targets,)


class Segmenter(nn.Module):
    """A fully convolutional network, with its logits made larger again."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8, stride=2), conv(8, 16, stride=2), nn.Conv2d(16, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(
            self.body(x), size=x.shape[-2:], mode="bilinear", align_corners=False
        )


def fcn(batch: int = 8) -> Built:
    targets = torch.randint(0, 5, (batch, 32, 32))
    return Segmenter(), (torch.randn(batch, 3, 32, 32),), functional.cross_entropy, (targets,)


class Pyramid(nn.Module):
    """A feature pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = conv(3, 8, stride=2), conv(8, 16, stride=2)
        self.side, self.top = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
        self.head = Head(8)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        top = self.top(self.two(one))
        merged = self.side(one) + functional.interpolate(top, scale_factor=2, mode="nearest")
        return self.head(merged) + self.head(top)


def feature_pyramid(batch: int = 8) -> Built:
    return classified(Pyramid(), batch)


class Generator(nn.Module):
    """DCGAN's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(16, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z[:, :, None, None])


def dcgan_generator(batch: int = 8) -> Built:
    return Generator(), (torch.randn(batch, 16),), nn.MSELoss(), (torch.randn(batch, 3, 16, 16),)


def dcgan_discriminator(batch: int = 8) -> Built:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 16, 4, 2, 1),
        nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 1, 4), nn.Flatten(0),
    )  # fmt: skip
    targets = (torch.rand(batch),)
    return body, (torch.randn(batch, 3, 16, 16),), nn.BCEWithLogitsLoss(), targets


class SuperResolution(nn.Module):
    """ESPCN, with a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1)
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(self.body(x))


def super_resolution(batch: int = 8) -> Built:
    inputs, targets = torch.randn(batch, 3, 16, 16), torch.randn(batch, 3, 32, 32)
    return SuperResolution(), (inputs,), nn.L1Loss(), (targets,)


class Ghost(nn.Module):
    """EfficientNet's activations and a group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16)
        self.depth, self.squeeze = nn.Conv2d(16, 16, 3, padding=1, groups=16), Squeeze(16)
        self.head = Head(16)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.norm(self.stem(x)))
        return self.head(functional.mish(self.squeeze(self.depth(x))) + x)


def efficientnet(batch: int = 8) -> Built:
    return classified(Ghost(), batch)


class Video(nn.Module):
    """A network of 3-D convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(3, 8, 3, padding=1), nn.Conv3d(8, 16, 3, 2, 1)
        self.norm, self.head = nn.BatchNorm3d(8), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool3d(torch.relu(self.norm(self.one(x))), (1, 2, 2))
        return self.head(self.two(x).mean(dim=[2, 3, 4]))


def video_3d(batch: int = 8) -> Built:
    inputs = torch.randn(batch, 3, 4, 16, 16)
    return Video(), (inputs,), functional.cross_entropy, (torch.randint(0, 10, (batch,)),)


class Autoencoder(nn.Module):
    """A convolutional autoencoder whose loss is its output."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(conv(3, 8, stride=2), conv(8, 4, stride=2))
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=2),
            conv(4, 8),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return ((self.decode(self.encode(x)) - x) ** 2).mean()


def autoencoder(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Autoencoder(), (torch.randn(batch, 3, 16, 16),)
